"""The official `openai` client, unmodified, against the app over TCP."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import openai
import pytest
import uvicorn
from openai import AsyncOpenAI, OpenAI
from unit.edge_node.openai.script import MODEL, ScriptSource, app_for

from firstlight.edge_node.answer import Ask
from firstlight.edge_node.openai.routes import ApiLimits
from firstlight.edge_node.openai.sessions import Pace
from firstlight.edge_node.tenants import Tenants
from firstlight.shared.errors import CapacityError, FirstlightError, PeerError, QuotaError

HELLO = [b"Hel", b"lo ", "wörld 😀".encode()[:9], "wörld 😀".encode()[9:], b" END more"]
TEXT = "Hello wörld 😀 END more"


def script(ask: Ask) -> list[Any]:
    """The last word of the prompt chooses what happens."""
    text = bytes(i for i in ask.prompts[0] if i < 256).decode()
    scripts: dict[str, list[Any]] = {
        "quiet": [b"a", 0.3, b"b"],
        "break": [b"Hel", PeerError("the core is gone")],
        "forever": [b"x", 60.0],
    }
    return next((steps for word, steps in scripts.items() if text.endswith(word)), HELLO)


def refuse(ask: Ask) -> FirstlightError | None:
    text = bytes(i for i in ask.prompts[0] if i < 256).decode()
    refusals = {"quota": QuotaError("used up"), "full": CapacityError("full", retry_after_s=0.01)}
    return next((error for word, error in refusals.items() if text.endswith(word)), None)


SOURCE = ScriptSource(script, refuse)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys: Path = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"acme: {sha256(b'sk-acme').hexdigest()}\n")
    app = app_for(
        SOURCE,
        tenants=Tenants.load(keys, loopback=False),
        limits=ApiLimits(pace=Pace(keep_alive_s=0.05)),
    )
    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/v1"
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url, api_key="sk-acme", max_retries=0) as client:
        yield client


def says(text: str) -> dict[str, Any]:
    return {"model": MODEL.id, "messages": [{"role": "user", "content": text}]}


def test_a_chat_comes_whole(client: OpenAI) -> None:
    answer = client.chat.completions.create(**says("hi"), seed=3)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model_extra is not None
    assert answer.model_extra["firstlight"]["seed"] == 3
    assert answer._request_id is not None


def test_a_chat_comes_in_chunks(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(**says("hi"), stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == TEXT
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].choices[0].delta.content is None
    assert len({c.id for c in chunks}) == 1
    assert all(c.usage is None for c in chunks)


def test_usage_is_an_extra_chunk(client: OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(**says("hi"), stream=True, stream_options=options))
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(TEXT.encode()) + 1
    assert all(c.usage is None for c in chunks[:-1])


def test_the_clients_own_stream_helper_puts_the_answer_together(client: OpenAI) -> None:
    with client.chat.completions.stream(**says("hi"), logprobs=True) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == TEXT


def test_a_stop_string_is_cut_with_its_logprobs(client: OpenAI) -> None:
    answer = client.chat.completions.create(**says("hi"), stop=["END"], logprobs=True)
    choice = answer.choices[0]
    assert choice.message.content == "Hello wörld 😀 "
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    raw = b"".join(bytes(line.bytes or []) for line in choice.logprobs.content)
    assert raw.decode() == "Hello wörld 😀 "


def test_max_tokens_ends_with_length(client: OpenAI) -> None:
    answer = client.chat.completions.create(**says("hi"), max_completion_tokens=3)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hel", "length")


def test_streamed_logprobs_match_the_text(client: OpenAI) -> None:
    chunks = client.chat.completions.create(
        **says("hi"), stream=True, logprobs=True, top_logprobs=2, stop="world"
    )
    lines = [
        line
        for chunk in chunks
        if chunk.choices[0].logprobs
        for line in chunk.choices[0].logprobs.content or []
    ]
    assert b"".join(bytes(line.bytes or []) for line in lines).decode() == TEXT
    assert all(len(line.top_logprobs) == 2 for line in lines)


@pytest.mark.parametrize("stream", [False, True])
def test_two_choices_are_told_apart(client: OpenAI, stream: bool) -> None:
    answer: Any = client.chat.completions.create(**says("hi"), n=2, stream=stream)
    texts = ["", ""]
    if stream:
        for chunk in answer:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    else:
        texts = [choice.message.content for choice in answer.choices]
    assert texts == [TEXT, TEXT]


def test_completions_come_whole_and_in_chunks(client: OpenAI) -> None:
    whole = client.completions.create(
        model=MODEL.id, prompt=["one", "two"], logprobs=1, max_tokens=5
    )
    assert [choice.text for choice in whole.choices] == ["Hello", "Hello"]
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.text_offset == [0, 1, 2, 3, 4]
    chunks = client.completions.create(
        model=MODEL.id, prompt="one", stream=True, echo=True, max_tokens=5
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == "oneHello"


def test_silence_does_not_disturb_the_client(client: OpenAI) -> None:
    chunks = client.chat.completions.create(**says("quiet"), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "ab"


def test_an_error_in_a_stream_is_raised(client: OpenAI) -> None:
    chunks = client.chat.completions.create(**says("break"), stream=True)
    with pytest.raises(openai.APIError, match="the core is gone"):
        list(chunks)


def test_errors_are_the_clients_classes(client: OpenAI, url: str) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**says("hi"), temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(**says("x" * 300))
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**says("hi") | {"model": "gpt"})
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(**says("quota"))
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(**says("full"))
    with pytest.raises(openai.AuthenticationError):
        OpenAI(base_url=url, api_key="sk-other", max_retries=0).models.list()


def test_the_client_retries_what_may_pass(url: str) -> None:
    with OpenAI(base_url=url, api_key="sk-acme", max_retries=1) as client:
        begin = time.monotonic()
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(**says("full"))
        assert time.monotonic() - begin < 0.45  # the client's own first wait is 0.5 s or more


def test_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL.id]
    assert client.models.retrieve(MODEL.id).owned_by == "firstlight"


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 (another thread's loop)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_ends_the_work(url: str, stream: bool) -> None:
    async with AsyncOpenAI(base_url=url, api_key="sk-acme", max_retries=0) as client:
        count = len(SOURCE.answers)

        async def ask() -> None:
            answer: Any = await client.chat.completions.create(**says("forever"), stream=stream)
            async for _ in answer:
                pass

        task = asyncio.ensure_future(ask())
        await until(lambda: len(SOURCE.answers) > count)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: SOURCE.answers[-1].closed == 1)
