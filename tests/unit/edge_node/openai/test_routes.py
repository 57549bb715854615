"""From an HTTP request to an Ask, and back: statuses, bodies, headers."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from unit.edge_node.openai.script import EOS, ScriptSource, app_for
from unit.edge_node.openai.test_schema import BODIES

from firstlight.edge_node.middleware import AccessCounts
from firstlight.edge_node.openai.routes import ApiLimits
from firstlight.edge_node.tenants import Tenants
from firstlight.shared.errors import CapacityError, PeerError, QuotaError
from firstlight.shared.types import Priority

CHAT: dict[str, Any] = {"model": "tiny/bytes", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "tiny/bytes", "prompt": "hi"}


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://edge")


@pytest.fixture
def source() -> ScriptSource:
    return ScriptSource()


@pytest.fixture
async def client(source: ScriptSource) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app_for(source, not_ready=lambda: "no core lives")) as client:
        yield client


async def test_a_chat_is_answered_in_one_body(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/chat/completions", json=CHAT | {"seed": -5})
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"] == "Hello world"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 12,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    told = body["firstlight"]
    assert told["ids"] == [*b"Hello world", EOS]
    assert told["seed"] == -5
    assert told["ttft_ms"]["total"] == 12.346
    assert told["hints"] == {"edge-ngram": {"offered": 5, "verified": 4, "accepted": 3}}
    assert response.headers["x-firstlight-edge"] == "edge-1"
    assert response.headers["x-firstlight-core"] == "core-1"
    assert response.headers["x-firstlight-region"] == "eu"
    assert response.headers["x-request-id"].startswith("req_")
    assert int(response.headers["openai-processing-ms"]) >= 0


async def test_a_request_becomes_an_ask(client: httpx.AsyncClient, source: ScriptSource) -> None:
    await client.post(
        "/v1/chat/completions",
        json=CHAT
        | {
            "seed": -1, "max_completion_tokens": 7, "n": 2, "stop": ["\n", "\n"],
            "firstlight": {"hints": "off", "priority": "batch", "ignore_eos": True},
        },
    )  # fmt: skip
    ask = source.answers[0].ask
    assert ask.tenant == "local"
    assert ask.prompts == ((*b"user: hi", EOS),)
    assert ask.seed == (1 << 64) - 1
    assert (ask.max_tokens, ask.n, ask.stop) == (7, 2, ("\n",))
    assert (ask.hints, ask.priority, ask.ignore_eos) == (False, Priority.BATCH, True)
    assert ask.received_s > 0


async def test_without_a_seed_one_is_drawn_and_returned(
    client: httpx.AsyncClient, source: ScriptSource
) -> None:
    seeds = [
        (await client.post("/v1/chat/completions", json=CHAT)).json()["firstlight"]["seed"]
        for _ in range(2)
    ]
    assert seeds == [answer.ask.seed for answer in source.answers]
    assert seeds[0] != seeds[1]
    assert all(0 <= seed < 1 << 53 for seed in seeds)


async def test_control_tokens_in_content_stay_text(
    client: httpx.AsyncClient, source: ScriptSource
) -> None:
    messages = [{"role": "user", "content": "<|end|>"}]
    await client.post("/v1/chat/completions", json=CHAT | {"messages": messages})
    await client.post("/v1/completions", json=COMPLETION | {"prompt": "a<|end|>"})
    assert source.answers[0].ask.prompts[0].count(EOS) == 1  # the template's own
    assert source.answers[1].ask.prompts == ((97, EOS),)


async def test_what_was_asked_and_the_context_are_told_to_the_source(
    client: httpx.AsyncClient, source: ScriptSource
) -> None:
    await client.post("/v1/completions", json=COMPLETION | {"max_tokens": 10_000})
    await client.post("/v1/completions", json=COMPLETION)
    await client.post("/v1/chat/completions", json=CHAT)
    assert [answer.ask.max_tokens for answer in source.answers] == [10_000, 16, None]
    assert {answer.ask.context_max for answer in source.answers} == {200}


async def test_each_prompt_of_a_completion_has_its_choices(
    client: httpx.AsyncClient, source: ScriptSource
) -> None:
    source.script = [lambda prompt: bytes(prompt[:1]) * 2]
    response = await client.post(
        "/v1/completions", json=COMPLETION | {"prompt": ["ab", "c"], "n": 2, "echo": True}
    )
    body = response.json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [
        (0, "abaa"), (1, "abaa"), (2, "ccc"), (3, "ccc"),
    ]  # fmt: skip
    assert body["usage"]["prompt_tokens"] == 3
    assert [c["firstlight"]["stream"] for c in body["choices"]] == [f"stream-{i}" for i in range(4)]


async def test_ids_are_a_prompt(client: httpx.AsyncClient, source: ScriptSource) -> None:
    response = await client.post("/v1/completions", json=COMPLETION | {"prompt": [104, 105]})
    assert response.json()["choices"][0]["text"] == "Hello world"
    assert source.answers[0].ask.prompts == ((104, 105),)


BAD = [
    ("/v1/completions", {"prompt": ""}, 400, "prompt", None),
    ("/v1/completions", {"prompt": [257]}, 400, "prompt", None),
    ("/v1/completions", {"prompt": ["a", ""]}, 400, "prompt.1", None),
    ("/v1/completions", {"prompt": ["a"] * 5, "n": 8}, 400, "n", None),
    ("/v1/completions", {"prompt": "x" * 200}, 400, "prompt", "context_length_exceeded"),
    ("/v1/completions", {"model": "gpt"}, 404, "model", "model_not_found"),
    ("/v1/completions", {"logit_bias": {"257": 1}}, 400, "logit_bias", None),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x" * 300}]},
        400,
        "messages",
        "context_length_exceeded",
    ),
]


@pytest.mark.parametrize(("path", "fields", "status", "param", "code"), BAD)
async def test_a_bad_request_is_named(
    client: httpx.AsyncClient,
    path: str,
    fields: dict[str, Any],
    status: int,
    param: str,
    code: str | None,
) -> None:
    base = CHAT if "chat" in path else COMPLETION
    response = await client.post(path, json=base | fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)
    assert error["type"] == "invalid_request_error"
    assert response.headers["x-should-retry"] == "false"


async def test_an_over_long_prompt_is_told_the_numbers(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/completions", json=COMPLETION | {"prompt": "x" * 201})
    message = response.json()["error"]["message"]
    assert "201 tokens" in message
    assert "200" in message


@pytest.mark.parametrize(("sent", "read"), [(300, 300), (1_000, 410)])
async def test_a_body_above_the_limit_is_read_for_a_while_before_it_is_refused(
    sent: int, read: int
) -> None:
    taken = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(sent // 10):
            taken += 10
            yield b"x" * 10

    app = app_for(ScriptSource(), limits=ApiLimits(body_bytes_max=100))
    async with client_of(app) as client:
        response = await client.post("/v1/completions", content=parts())
    assert response.status_code == 413
    assert f"a body of {read} bytes or more, at most 100 expected" in response.text
    assert taken == read


async def test_a_body_that_is_told_to_be_absurd_is_refused_unread() -> None:
    async def parts() -> AsyncIterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    app = app_for(ScriptSource(), limits=ApiLimits(body_bytes_max=100))
    async with client_of(app) as client:
        told = {"content-length": "401"}
        response = await client.post("/v1/completions", content=parts(), headers=told)
    assert response.status_code == 413


async def test_a_client_that_goes_in_the_middle_of_its_body_asks_nothing() -> None:
    source, counts = ScriptSource(), AccessCounts()
    whole = json.dumps(CHAT).encode()
    messages = iter([
        {"type": "http.request", "body": whole, "more_body": True},
        {"type": "http.disconnect"},
    ])  # fmt: skip
    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [],
        "query_string": b"", "http_version": "1.1", "scheme": "https",
    }  # fmt: skip

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        del message

    await app_for(source, counts=counts)(scope, receive, send)
    assert source.answers == []
    assert [status for *_, status in counts.ended] == [499]


async def test_a_path_is_not_redirected(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/chat/completions/")).status_code == 404


async def test_a_body_above_the_limit_is_refused() -> None:
    async with client_of(app_for(ScriptSource(), limits=ApiLimits(body_bytes_max=100))) as client:
        told = await client.post("/v1/completions", content=b"x" * 101)

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(11):
                yield b"x" * 10

        untold = await client.post("/v1/completions", content=parts())
    assert (told.status_code, untold.status_code) == (413, 413)
    assert "100 expected" in untold.json()["error"]["message"]


async def test_a_refusal_is_a_status_even_for_a_stream(source: ScriptSource) -> None:
    source.refuse = lambda _: QuotaError("used up", retry_after_s=2.5)
    async with client_of(app_for(source)) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    assert response.headers["retry-after-ms"] == "2500"
    assert "x-should-retry" not in response.headers
    assert response.json()["error"]["type"] == "rate_limit_error"


async def test_an_error_before_the_first_event_is_a_status(source: ScriptSource) -> None:
    source.script = [CapacityError("full")]
    async with client_of(app_for(source)) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert source.answers[0].closed == 1


async def test_an_error_after_the_first_event_ends_the_stream_without_done(
    source: ScriptSource,
) -> None:
    source.script = [b"Hel", PeerError("the core is gone")]
    async with client_of(app_for(source)) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert response.status_code == 200
    last = response.text.split("\n\n")[-2]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "peer"
    assert "[DONE]" not in response.text


async def test_a_stream_can_be_gone_on_with(
    client: httpx.AsyncClient, source: ScriptSource
) -> None:
    broken = await client.post("/v1/chat/completions", json=CHAT | {"stream": True, "n": 2})
    first = json.loads(broken.text.split("\n\n")[0].removeprefix("data: "))["firstlight"]
    resume = {name: first[name] for name in ("cap", "seed", "class")} | {"ids": [[72], [72, 101]]}
    again = CHAT | {"stream": True, "n": 2, "firstlight": {"resume": resume}}
    response = await client.post("/v1/chat/completions", json=again)
    assert response.status_code == 200
    begun, resumed = source.answers[0].ask, source.answers[1].ask
    assert resumed.committed == ((72,), (72, 101))
    assert resumed.numerics_class == "abc123"
    same = {"committed": (), "numerics_class": None, "received_s": begun.received_s}
    assert replace(resumed, **same) == begun  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"stream": False}, "stream"),
        ({"seed": 5}, "seed"),
        ({"temperature": 0.25}, "firstlight.resume.cap"),
        ({"firstlight": {"resume": {"cap": "00", "seed": 1, "ids": []}}}, "firstlight.resume.cap"),
        ({"firstlight": {"resume": {"cap": "00", "seed": 1}}}, "firstlight.resume.ids"),
        ({"firstlight": {"resume": {"cap": "00", "seed": 1, "ids": [[1], [2]]}}}, None),
        ({"firstlight": {"resume": {"cap": "00", "seed": 1, "ids": [-1]}}}, None),
        ({"firstlight": {"resume": {"cap": "00", "seed": 1, "ids": [[[1]]]}}}, None),
        ({"firstlight": {"resume": {"cap": "00", "seed": 1, "ids": [999]}}}, None),
    ],
)
async def test_what_cannot_be_gone_on_with_is_named(
    client: httpx.AsyncClient, source: ScriptSource, change: dict[str, Any], param: str | None
) -> None:
    broken = await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    first = json.loads(broken.text.split("\n\n")[0].removeprefix("data: "))["firstlight"]
    resume = {"cap": first["cap"], "seed": first["seed"], "ids": [72]}
    again = CHAT | {"stream": True, "firstlight": {"resume": resume}} | change
    response = await client.post("/v1/chat/completions", json=again)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param or (param is None and "resume" in error["param"])
    assert len(source.answers) == 1


async def test_an_echo_of_several_choices_is_not_resumed(
    client: httpx.AsyncClient, source: ScriptSource
) -> None:
    resume = {"cap": "00", "seed": 1, "ids": [[72], []]}
    body = COMPLETION | {"stream": True, "echo": True, "n": 2, "firstlight": {"resume": resume}}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert "echo of 2 choices" in response.json()["error"]["message"]
    assert source.answers == []


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_breaks_off_is_an_error(source: ScriptSource, stream: bool) -> None:
    source.script = [b"Hel", EOFError]
    async with client_of(app_for(source)) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": stream})
    assert "no ending for choice 0" in response.text
    assert response.status_code == (200 if stream else 502)


async def test_a_bug_is_a_500_of_openais_shape(
    source: ScriptSource, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(_: object) -> None:
        raise ZeroDivisionError

    source.refuse = bug
    async with client_of(app_for(source)) as client:
        response = await client.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert response.headers["x-should-retry"] == "false"
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/models/other", 404),
        ("DELETE", "/v1/models", 405),
    ],
)
async def test_a_wrong_path_or_method_has_openais_shape(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await client.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert ("allow" in response.headers) == (status == 405)


async def test_models_are_listed_and_found(client: httpx.AsyncClient) -> None:
    entry = {
        "id": "tiny/bytes",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "firstlight",
        "max_model_len": 200,
    }
    assert (await client.get("/v1/models")).json() == {"object": "list", "data": [entry]}
    assert (await client.get("/v1/models/tiny/bytes")).json() == entry


async def test_a_node_says_whether_it_lives_and_is_ready(client: httpx.AsyncClient) -> None:
    assert (await client.get("/livez")).status_code == 200
    ready = await client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["reason"] == "no core lives"
    assert (await client.get("/metrics")).content == b"up 1\n"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny/bytes"])
async def test_a_key_is_asked_for(tmp_path: Path, path: str) -> None:
    (tmp_path / "keys").write_text(f"acme: {sha256(b'sk-acme').hexdigest()}")
    tenants = Tenants.load(tmp_path / "keys", loopback=False)
    async with client_of(app_for(ScriptSource(), tenants=tenants)) as client:
        refused = await client.get(path)
        served = await client.get(path, headers={"authorization": "Bearer sk-acme"})
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert refused.headers["www-authenticate"] == "Bearer"
    assert served.status_code == 200


async def test_requests_are_counted_by_route(source: ScriptSource) -> None:
    counts = AccessCounts()
    async with client_of(app_for(source, counts=counts)) as client:
        await client.get("/v1/models/tiny/bytes")
        await client.get("/v1/models/gpt")
        await client.get("/" + "x" * 50)
    assert counts.ended == {
        ("GET", "/v1/models/{model:path}", "h1", 200): 1,
        ("GET", "/v1/models/{model:path}", "h1", 404): 1,
        ("GET", "other", "h1", 404): 1,
    }
    assert counts.running == 0


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(BODIES)
def test_random_json_is_never_a_500(fields: dict[str, object]) -> None:
    async def ask() -> list[int]:
        async with client_of(app_for(ScriptSource())) as client:
            # Encoded here, since httpx refuses what a hostile client can send: NaN and infinity.
            chat, text = json.dumps(CHAT | fields), json.dumps(COMPLETION | fields)
            return [
                (await client.post("/v1/chat/completions", content=chat)).status_code,
                (await client.post("/v1/completions", content=text)).status_code,
            ]

    assert set(asyncio.run(ask())) <= {200, 400, 404}
