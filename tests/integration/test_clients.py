"""The official `openai` client over TCP, and two independent stacks over HTTP/3, on a real mesh."""

import json
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import niquests
import openai
import pytest
from curl_cffi import CurlHttpVersion
from curl_cffi import requests as curl_requests

from firstlight.infra.mesh import Mesh

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SEEDED: dict[str, Any] = {"model": "auto", "seed": 11, "max_tokens": 8}
ASKED = {"messages": [{"role": "user", "content": "Tell me about rivers."}]} | SEEDED
CONTINUED = {"prompt": "One, two, three, four,"} | SEEDED
USAGE = {"stream": True, "stream_options": {"include_usage": True}}

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, ASKED),
    "chat streamed": (CHAT, ASKED | {"stream": True}),
    "chat with usage": (CHAT, ASKED | USAGE),
    "chat twice": (CHAT, ASKED | {"n": 2}),
    "chat with logprobs": (CHAT, ASKED | {"logprobs": True, "top_logprobs": 2}),
    "chat with stop": (CHAT, ASKED | {"stop": [" the", "."], "max_tokens": 24}),
    "text": (TEXT, CONTINUED),
    "text streamed": (TEXT, CONTINUED | {"stream": True, "logprobs": 1}),
    "a wrong value": (CHAT, ASKED | {"temperature": 3}),
    "an unknown model": (CHAT, ASKED | {"model": "gpt-0"}),
    "a tool": (CHAT, ASKED | {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    "no prompt": (TEXT, SEEDED),
}
CHANGING = ("id", "created", "system_fingerprint", "firstlight")


@dataclass(frozen=True)
class Got:
    """What a client got: status, and the bodies without what may differ."""

    status: int
    bodies: list[Any]


def steady(value: Any) -> Any:
    """A JSON value without the fields that name this one answer, at any depth."""
    if isinstance(value, dict):
        return {name: steady(item) for name, item in value.items() if name not in CHANGING}
    return [steady(item) for item in value] if isinstance(value, list) else value


def got(status: int, text: str) -> Got:
    """Of a stream only its content counts, not how the ids were grouped into events."""
    if not text.startswith(("data:", ":")):
        return Got(status, [steady(json.loads(text))])
    payloads = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert payloads[-1] == "[DONE]"
    events = [steady(json.loads(payload)) for payload in payloads[:-1]]
    joined = "".join(
        choice.get("text") or choice.get("delta", {}).get("content") or ""
        for event in events
        for choice in event["choices"]
    )
    return Got(status, [events[0]["object"], joined, events[-1]])


Client = Callable[[str, dict[str, Any]], Got]


@pytest.fixture(scope="module")
def over_http1(session_mesh: Mesh) -> Iterator[Client]:
    verify = ssl.create_default_context(cafile=str(session_mesh.ca_file))
    url = session_mesh.plan.edges[0].url
    with httpx.Client(verify=verify, trust_env=False, timeout=120) as client:

        def ask(path: str, body: dict[str, Any]) -> Got:
            answer = client.post(url + path, json=body)
            assert answer.http_version == "HTTP/1.1"
            return got(answer.status_code, answer.text)

        yield ask


@pytest.fixture(scope="module")
def over_curl(session_mesh: Mesh) -> Iterator[Client]:
    url = session_mesh.plan.edges[0].url
    with curl_requests.Session(verify=str(session_mesh.ca_file), trust_env=False) as client:

        def ask(path: str, body: dict[str, Any]) -> Got:
            answer = client.post(
                url + path, json=body, http_version=CurlHttpVersion.V3ONLY, timeout=120
            )
            assert answer.http_version == CurlHttpVersion.V3
            return got(answer.status_code, answer.text)

        yield ask


@pytest.fixture(scope="module")
def over_niquests(session_mesh: Mesh) -> Iterator[Client]:
    url = session_mesh.plan.edges[0].url
    with niquests.Session(disable_http1=True, disable_http2=True) as client:
        client.trust_env = False
        client.quic_cache_layer.add_domain("127.0.0.1", urlsplit(url).port)

        def ask(path: str, body: dict[str, Any]) -> Got:
            answer = client.post(
                url + path, json=body, verify=str(session_mesh.ca_file), timeout=120
            )
            assert answer.http_version == 30
            assert answer.text is not None
            assert answer.status_code is not None
            return got(answer.status_code, answer.text)

        yield ask


@pytest.mark.parametrize("name", BODIES)
def test_independent_stacks_over_http3_get_what_http1_gets(
    name: str, mesh: Mesh, over_http1: Client, over_curl: Client, over_niquests: Client
) -> None:
    path, body = BODIES[name]
    over_http1(path, body)  # from here on the prefix cache has the prompt, and says so each time
    wanted = over_http1(path, body)
    assert wanted.status in (200, 400, 404)
    assert over_curl(path, body) == wanted
    assert over_niquests(path, body) == wanted


@pytest.fixture(scope="module")
def client(session_mesh: Mesh) -> Iterator[openai.OpenAI]:
    verify = ssl.create_default_context(cafile=str(session_mesh.ca_file))
    with httpx.Client(verify=verify, trust_env=False, timeout=120) as http_client:
        yield openai.OpenAI(
            base_url=f"{session_mesh.plan.edges[0].url}/v1",
            api_key="local",
            http_client=http_client,
            max_retries=0,
        )


def test_openai_chat_streams_the_text_that_it_gets_whole(mesh: Mesh, client: openai.OpenAI) -> None:
    asked: Any = ASKED | {"temperature": 0.9, "max_tokens": 16}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.create(**asked, **USAGE) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_openai_completions_stream_the_text_that_they_get_whole(
    mesh: Mesh, client: openai.OpenAI
) -> None:
    asked: Any = CONTINUED
    whole = client.completions.create(**asked)
    with client.completions.create(**asked, stream=True) as stream:
        text = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
    assert text == whole.choices[0].text


def test_openai_gets_two_different_texts_for_n_2(mesh: Mesh, client: openai.OpenAI) -> None:
    asked: Any = ASKED | {"n": 2, "temperature": 1.0, "max_tokens": 16}
    one, other = client.chat.completions.create(**asked).choices
    assert (one.index, other.index) == (0, 1)
    assert one.message.content != other.message.content


def test_openai_gets_logprobs_beside_the_text(mesh: Mesh, client: openai.OpenAI) -> None:
    asked: Any = ASKED | {"logprobs": True, "top_logprobs": 3, "temperature": 0}
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    content = choice.logprobs.content
    spelled = b"".join(bytes(token.bytes or []) for token in content).decode()
    assert spelled == choice.message.content
    assert all(len(token.top_logprobs) == 3 for token in content)
    assert all(token.logprob == token.top_logprobs[0].logprob <= 0 for token in content)


def test_openai_text_ends_before_a_stop_string(mesh: Mesh, client: openai.OpenAI) -> None:
    asked: Any = ASKED | {"temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    assert whole is not None
    stop = whole[10:14]
    cut = client.chat.completions.create(**asked, stop=stop).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.message.content == whole[: whole.index(stop)]


@pytest.mark.parametrize(
    ("change", "error", "param"),
    [
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"model": "gpt-0"}, openai.NotFoundError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format"),
    ],
)
def test_openai_raises_its_own_error_that_names_the_field(
    mesh: Mesh,
    client: openai.OpenAI,
    change: dict[str, Any],
    error: type[openai.APIStatusError],
    param: str,
) -> None:
    asked: Any = ASKED | change
    with pytest.raises(error) as caught:
        client.chat.completions.create(**asked)
    assert str(caught.value.param).startswith(param)
