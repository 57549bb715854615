"""What every answer carries, whatever made it."""

from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from firstlight.edge_node.middleware import MARKS, Access, AccessCounts, EdgeMiddleware


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope[MARKS].request_id.encode()})


async def broken(scope: Scope, receive: Receive, send: Send) -> None:
    raise ZeroDivisionError


async def ask(app: Any, method: str = "GET", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://edge"
    ) as client:
        return await client.request(method, "/", headers=named)


def wrapped(app: Any, **options: Any) -> EdgeMiddleware:
    return EdgeMiddleware(app, counts=AccessCounts(), **options)


async def test_a_sane_request_id_is_the_clients() -> None:
    response = await ask(wrapped(hello), x_request_id="abc-123")
    assert response.headers["x-request-id"] == response.text == "abc-123"


@pytest.mark.parametrize("given", ["x" * 129, "a b", 'a"b', ""])
async def test_any_other_request_id_is_ours(given: str) -> None:
    response = await ask(wrapped(hello), x_request_id=given)
    assert response.headers["x-request-id"].startswith("req_")


async def test_the_time_taken_is_told() -> None:
    times = iter([1.0, 1.25, 1.5])
    response = await ask(wrapped(hello, clock=lambda: next(times)))
    assert response.headers["openai-processing-ms"] == "250"


async def test_a_preflight_reflects_the_sdks_headers() -> None:
    response = await ask(
        wrapped(broken),
        "OPTIONS",
        origin="https://app.example",
        access_control_request_method="POST",
        access_control_request_headers="authorization,x-stainless-lang",
    )
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "*"
    assert response.headers["access-control-allow-headers"] == "authorization,x-stainless-lang"
    assert "POST" in response.headers["access-control-allow-methods"]
    assert response.headers["access-control-max-age"] == "86400"


async def test_a_preflight_does_not_reflect_what_is_no_header_name() -> None:
    response = await ask(
        wrapped(hello), "OPTIONS", origin="https://a.b", access_control_request_headers="<x>"
    )
    assert response.headers["access-control-allow-headers"].startswith("authorization")


async def test_a_cross_origin_answer_exposes_our_headers() -> None:
    response = await ask(wrapped(hello), origin="https://app.example")
    assert "x-request-id" in response.headers["access-control-expose-headers"]
    assert "access-control-allow-origin" not in (await ask(wrapped(hello))).headers


async def test_a_bug_is_a_500_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    response = await ask(wrapped(broken), x_request_id="abc")
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert response.headers["x-request-id"] == "abc"
    assert "ZeroDivisionError" in caplog.text


async def test_an_ended_request_is_told_to_whoever_listens() -> None:
    seen: list[Access] = []
    await ask(wrapped(hello, on_access=seen.append), "BREW")
    assert [(a.method, a.route, a.protocol, a.status) for a in seen] == [
        ("other", "other", "h1", 200)
    ]
    assert seen[0].wall_s >= 0


async def test_lifespan_passes_through() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def never(*_: Any) -> Any:
        raise AssertionError

    await wrapped(app)({"type": "lifespan"}, never, never)
    assert seen == ["lifespan"]
