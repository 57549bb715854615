"""What a request belongs to: the hash that keeps a conversation in one region. Sans-IO.

A client may say it (`prompt_cache_key`, else `user`). Where it does not, a chat is known by all up
to its first word of a user, which each later turn repeats; a system prompt alone would make all of
a tenant's traffic one session. Anything else belongs to itself. The tenant is hashed too: what a
client says is no key of ours.
"""

import json
from hashlib import blake2b

from firstlight.edge_node.openai.schema import ChatBody, CompletionBody, Message

SESSION_BYTES = 16
SAID_CHARS_MAX = 1024
"""Of what a client says; the rest makes no difference."""


def session_of(tenant: str, body: ChatBody | CompletionBody) -> bytes:
    """The same for all turns of a conversation, as far as can be known."""
    for kind, said in (("cache", body.prompt_cache_key), ("user", body.user)):
        if isinstance(said, str) and said:
            return _hash(tenant, kind, said[:SAID_CHARS_MAX])
    if isinstance(body, ChatBody):
        return _hash(tenant, "chat", _beginning(body.messages))
    return _hash(tenant, "prompt", body.prompt)


def _beginning(messages: list[Message]) -> list[object]:
    """Roles and contents up to the first user's."""
    first = next((n for n, message in enumerate(messages) if message.role == "user"), 0)
    return [message.model_dump(include={"role", "content"}) for message in messages[: first + 1]]


def _hash(*parts: object) -> bytes:
    return blake2b(json.dumps(parts).encode(), digest_size=SESSION_BYTES).digest()
