"""The gate alone: whom it ends, whom it lets live, and what it says."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from firstlight.edge_node.http.gate import TcpGate
from firstlight.edge_node.http.limits import HttpLimits

STALL_S = 0.1
App = Callable[[Any, Any, Any], Awaitable[None]]
START = {"type": "http.response.start", "status": 200, "headers": [(b"X-Name", b" v ")]}
BODY = {"type": "http.response.body", "body": b"ok"}


class Exchange:
    """One request through a gate."""

    def __init__(self, gate: TcpGate, *, fields: list[tuple[bytes, bytes]] | None = None) -> None:
        self.sent: list[Any] = []
        self.messages: list[Any] = [{"type": "http.request", "body": b"", "more_body": False}]
        self.writable = asyncio.Event()
        self.writable.set()
        scope = {
            "type": "http",
            "method": "POST",
            "headers": fields or [],
            "client": ("::1", "7"),
            "server": None,
        }
        self.task = asyncio.ensure_future(gate(scope, self.receive, self.send))

    async def receive(self) -> Any:
        if not self.messages:
            await asyncio.sleep(60)
        return self.messages.pop(0)

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        await self.writable.wait()


def gate(app: App, **limits: Any) -> TcpGate:
    return TcpGate(app, HttpLimits(**({"stall_timeout_s": STALL_S} | limits)), {}, h3_port=443)


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send(START)
    await send(BODY)


async def test_a_request_that_thinks_for_longer_than_a_stall_lives() -> None:
    async def think(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        await asyncio.sleep(4 * STALL_S)
        await send(BODY)

    one = Exchange(gate(think))
    await one.task
    assert one.sent[-1] == BODY


async def test_a_client_that_takes_nothing_ends_its_request_alone() -> None:
    made = gate(answer)
    stuck, other = Exchange(made), Exchange(made)
    stuck.writable.clear()
    await asyncio.wait_for(asyncio.gather(stuck.task, other.task), 2)
    assert stuck.sent == other.sent[:1]
    assert made.requests == 0


async def test_a_cancel_that_is_no_stall_reaches_the_server() -> None:
    made = gate(lambda *_: asyncio.sleep(60))
    one = Exchange(made)
    await asyncio.sleep(0)
    await made.cancel()
    assert one.task.cancelled()


async def test_a_declared_body_above_the_limit_never_reaches_the_application() -> None:
    one = Exchange(
        gate(lambda *_: pytest.fail("it was called"), body_bytes_max=10),
        fields=[(b"content-length", b"11")],
    )
    await one.task
    assert one.sent[0]["status"] == 413


async def test_an_application_says_nothing_after_a_refusal() -> None:
    one = Exchange(gate(answer, body_bytes_max=10))
    one.messages = [{"type": "http.request", "body": b"x" * 11, "more_body": False}]
    await one.task
    assert [message["type"] for message in one.sent] == [START["type"], BODY["type"]]
    assert one.sent[0]["status"] == 413


async def test_more_requests_than_may_be_are_told_to_come_back() -> None:
    made = gate(lambda *_: asyncio.sleep(60), requests_max=1)
    Exchange(made)
    await asyncio.sleep(0)
    second = Exchange(made)
    await second.task
    assert second.sent[0]["status"] == 503
    await made.cancel()


async def test_fields_are_clean_and_say_where_http3_is() -> None:
    one = Exchange(gate(answer))
    await one.task
    assert one.sent[0]["headers"] == [(b"x-name", b"v"), (b"alt-svc", b'h3=":443"; ma=86400')]
