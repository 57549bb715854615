"""What keeps the turns of a conversation together."""

import json

from firstlight.edge_node.openai.affinity import session_of
from firstlight.edge_node.openai.schema import parse_chat, parse_completion

SYSTEM = {"role": "system", "content": "You are brief."}


def chat(*contents: str, tenant: str = "t", **more: object) -> bytes:
    roles = ("user", "assistant")
    turns = [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]
    body = {"model": "m", "messages": [SYSTEM, *turns], **more}
    return session_of(tenant, parse_chat(json.dumps(body).encode()))


def test_all_turns_of_a_chat_belong_together() -> None:
    assert chat("Hello") == chat("Hello", "Hi!", "And now?")


def test_chats_with_one_system_prompt_do_not() -> None:
    assert chat("Hello") != chat("Good morning")


def test_what_a_client_says_counts_first() -> None:
    assert chat("one", user="u") == chat("two", user="u")
    assert chat("one", user="u", prompt_cache_key="a") != chat("one", user="u")
    assert chat("one", user=5) == chat("one"), "what is no text says nothing"


def test_tenants_never_share_one() -> None:
    assert chat("one", user="u", tenant="a") != chat("one", user="u", tenant="b")


def test_a_prompt_belongs_to_itself() -> None:
    def asked(prompt: object) -> bytes:
        body = json.dumps({"model": "m", "prompt": prompt})
        return session_of("t", parse_completion(body.encode()))

    assert asked("one") == asked("one") != asked("two")
    assert asked([1, 2]) != asked([1, 3])
