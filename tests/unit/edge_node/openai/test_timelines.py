"""`GET /v1/requests/{id}`, and the id by which a request can be asked for, over HTTP."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from unit.edge_node.openai.script import ScriptSource, app_for
from unit.edge_node.openai.test_routes import CHAT, COMPLETION, client_of

from firstlight.edge_node.openai.routes import ApiLimits
from firstlight.edge_node.tenants import Tenants
from firstlight.edge_node.timeline import TimelineLimits, Timelines
from firstlight.shared.errors import CapacityError, PeerError

ID = "x-firstlight-request"
SECRET = "a word that nobody shall keep"


def whats(story: dict[str, Any]) -> list[str]:
    return [entry["what"] for entry in story["entries"]]


async def told(client: httpx.AsyncClient, response: httpx.Response) -> dict[str, Any]:
    found = await client.get(f"/v1/requests/{response.headers[ID]}")
    assert found.status_code == 200
    return found.json()  # type: ignore[no-any-return]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_can_be_asked_for_by_its_id(stream: bool) -> None:
    async with client_of(app_for(ScriptSource())) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": stream})
        story = await told(client, response)
    assert story["id"] == response.headers[ID]
    assert f'"id":"{story["id"]}"' in response.text
    assert story["id"].startswith("chatcmpl-")
    assert (story["status"], story["edge"]) == ("finished", "edge-1")
    first = ["first text"] if stream else []
    assert whats(story) == ["received", "tokenized", *first, "sent"]
    assert story["entries"][1]["prompt_tokens"] == 9


async def test_an_answer_can_be_asked_for_by_its_streams_too() -> None:
    source = ScriptSource()
    async with client_of(app_for(source)) as client:
        response = await client.post("/v1/completions", json=COMPLETION | {"n": 2})
        source.answers[0].ask.timeline.name(source.answers[0].streams)
        found = [await client.get(f"/v1/requests/stream-{number}") for number in (0, 1)]
    assert [one.json()["id"] for one in found] == [response.headers[ID]] * 2
    assert response.headers[ID].startswith("cmpl-")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_request_can_be_asked_for(stream: bool) -> None:
    source = ScriptSource(refuse=lambda _: CapacityError("shed: all 2 cores are full"))
    async with client_of(app_for(source)) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": stream})
        story = await told(client, response)
    assert response.status_code == 503
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert story["status"] == "failed"
    failed = story["entries"][-1]
    assert (failed["what"], failed["status"]) == ("failed", 503)
    assert failed["message"] == "shed: all 2 cores are full"


async def test_an_answer_that_broke_off_in_its_middle_can_be_asked_for() -> None:
    source = ScriptSource([b"Hel", PeerError("the core is gone")])
    async with client_of(app_for(source)) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
        story = await told(client, response)
    assert whats(story) == ["received", "tokenized", "first text", "failed"]
    assert story["entries"][-1]["message"] == "the core is gone"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("body", [b"{", b"x" * 3000, b'{"model": "nope", "prompt": "hi"}'])
async def test_what_cannot_be_served_has_an_id_and_a_story(path: str, body: bytes) -> None:
    app = app_for(ScriptSource(), limits=ApiLimits(body_bytes_max=2000))
    async with client_of(app) as client:
        response = await client.post(path, content=body)
        story = await told(client, response)
    assert 400 <= response.status_code < 500
    assert story["status"] == "failed"
    assert story["entries"][-1]["status"] == response.status_code


async def test_a_bug_can_be_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    def bug(_: object) -> None:
        raise ZeroDivisionError

    async with client_of(app_for(ScriptSource(refuse=bug))) as client:
        response = await client.post("/v1/chat/completions", json=CHAT)
        story = await told(client, response)
    assert response.status_code == 500
    assert story["entries"][-1]["kind"] == "internal"
    assert "ZeroDivisionError" in caplog.text


async def test_a_bug_before_there_is_an_answer_can_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("firstlight.edge_node.openai.routes.parse_chat", lambda raw: 1 / 0)
    async with client_of(app_for(ScriptSource())) as client:
        response = await client.post("/v1/chat/completions", json=CHAT)
        story = await told(client, response)
    assert (response.status_code, story["status"]) == (500, "failed")
    assert "ZeroDivisionError" in caplog.text


async def test_other_routes_carry_no_such_id() -> None:
    async with client_of(app_for(ScriptSource())) as client:
        assert ID not in (await client.get("/v1/models")).headers
        assert ID not in (await client.get("/v1/requests/nobody")).headers


async def test_a_browser_may_read_the_id() -> None:
    async with client_of(app_for(ScriptSource())) as client:
        response = await client.post(
            "/v1/chat/completions", json=CHAT, headers={"origin": "https://app.example"}
        )
    assert ID in response.headers["access-control-expose-headers"]


async def test_another_tenant_sees_what_nobody_sees(tmp_path: Path) -> None:
    lines = [f"{name}: {sha256(f'sk-{name}'.encode()).hexdigest()}" for name in ("acme", "other")]
    (tmp_path / "keys").write_text("\n".join(lines))
    app = app_for(ScriptSource(), tenants=Tenants.load(tmp_path / "keys", loopback=False))
    acme, other = ({"authorization": f"Bearer sk-{name}"} for name in ("acme", "other"))
    async with client_of(app) as client:
        response = await client.post("/v1/chat/completions", json=CHAT, headers=acme)
        path = f"/v1/requests/{response.headers[ID]}"
        mine = await client.get(path, headers=acme)
        foreign = await client.get(path, headers=other)
        unknown = await client.get(path[:-1] + "x", headers=other)
        keyless = await client.get(path)
    assert (mine.status_code, keyless.status_code) == (200, 401)
    assert foreign.status_code == unknown.status_code == 404
    words = [one.json()["error"]["message"] for one in (foreign, unknown)]
    assert words[0].replace(path[13:], "") == words[1].replace(path[13:-1] + "x", "")
    assert foreign.json()["error"]["code"] == "request_not_found"


async def test_a_request_that_is_too_old_is_unknown() -> None:
    app = app_for(ScriptSource(), timelines=Timelines(TimelineLimits(keep_s=0.0)))
    async with client_of(app) as client:
        response = await client.post("/v1/chat/completions", json=CHAT)
        found = await client.get(f"/v1/requests/{response.headers[ID]}")
    assert found.status_code == 404
    assert "forgotten after 0 s" in found.json()["error"]["message"]


async def test_only_so_many_requests_are_remembered() -> None:
    app = app_for(ScriptSource(), timelines=Timelines(TimelineLimits(requests_max=2)))
    async with client_of(app) as client:
        ids = [(await client.post("/v1/chat/completions", json=CHAT)).headers[ID] for _ in range(3)]
        found = [(await client.get(f"/v1/requests/{id}")).status_code for id in ids]
    assert found == [404, 200, 200]


@pytest.mark.parametrize("extra", [{}, {"temperature": SECRET}, {"model": SECRET}])
async def test_no_word_of_the_request_is_in_its_story(extra: dict[str, object]) -> None:
    asked = CHAT | {"messages": [{"role": "user", "content": SECRET}]} | extra
    async with client_of(app_for(ScriptSource())) as client:
        response = await client.post("/v1/chat/completions", json=asked)
        story = await client.get(f"/v1/requests/{response.headers[ID]}")
    assert SECRET not in story.text
    assert "Hello" not in story.text
