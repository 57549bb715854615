"""What the TCP servers do not do for us, as pure ASGI wrappers around the application.

Pure ASGI, because Starlette's BaseHTTPMiddleware hides disconnects from what it wraps. Over HTTP/3
the bridge does these things itself.
"""

import asyncio
import contextlib
from collections.abc import Mapping, MutableMapping
from typing import Any

from firstlight.edge_node.http.asgi import Fields, clean_fields, error_answer
from firstlight.edge_node.http.exchange import AsgiApp, Receive, Scope, Send
from firstlight.edge_node.http.limits import HttpLimits

DISCONNECT = {"type": "http.disconnect"}
DISCARD_BYTES_MAX = 1024 * 1024
_DISCARD_S = 1.0


class TcpGate:
    """Counts, bounds and announces: the one wrapper between a TCP server and the application.

    It refuses what is above a limit, gives the scope our lifespan state, adds `alt-svc`, and
    cancels what is left when a drain runs out of time.
    """

    def __init__(
        self, app: AsgiApp, limits: HttpLimits, state: Mapping[str, Any], h3_port: int | None
    ) -> None:
        self.draining = False
        self._app = BodyLimit(StallLimit(app, limits.stall_timeout_s), limits.body_bytes_max)
        self._limits = limits
        self._state = state
        self._alt_svc = None if h3_port is None else b'h3=":%d"; ma=86400' % h3_port
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def requests(self) -> int:
        """Requests in work now."""
        return len(self._tasks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http":
            raise RuntimeError(f"scope {scope['type']!r} is not served")
        task = asyncio.current_task()
        assert task is not None

        async def announce(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                fields = clean_fields(message.get("headers") or ())
                message = {**message, "headers": [*fields, *self._announced()]}
            await send(message)

        if self.draining or len(self._tasks) >= self._limits.requests_max:
            reason = (
                "the server is going away" if self.draining else "too many requests are in work"
            )
            await _answer(announce, 503, reason, retry_after_s=1)
            return
        scope = {**scope, "state": dict(self._state)}
        for end in ("client", "server"):  # granian gives the port as text
            if scope.get(end):
                scope[end] = (scope[end][0], int(scope[end][1]))
        self._tasks.add(task)
        try:
            await self._app(scope, receive, announce)
        finally:
            self._tasks.discard(task)

    async def cancel(self) -> None:
        """End what still runs."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def _announced(self) -> Fields:
        if self._alt_svc is None:
            return []
        return [(b"alt-svc", b"clear" if self.draining else self._alt_svc)]


class BodyLimit:
    """Answers 413 once for a request body above the limit, declared or counted."""

    def __init__(self, app: AsgiApp, body_bytes_max: int) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        reason = f"the body is above {self._body_bytes_max} bytes"
        declared = [value for name, value in scope["headers"] if name == b"content-length"]
        if any(not value.isdigit() or int(value) > self._body_bytes_max for value in declared):
            await _discard(receive)
            await _answer(send, 413, reason)
            return
        received_bytes = 0
        started = refused = False

        async def counted() -> MutableMapping[str, Any]:
            nonlocal received_bytes, refused
            if refused:
                return dict(DISCONNECT)
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._body_bytes_max:
                refused = True
                if not started:
                    if message.get("more_body"):
                        await _discard(receive)
                    await _answer(send, 413, reason)
                return dict(DISCONNECT)
            return message

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            started = True
            if not refused:
                await send(message)

        await self._app(scope, counted, answer)


class Stalled(OSError):
    """The client is there and takes nothing."""


class StallLimit:
    """Breaks off a `send` that waits for too long, with `Stalled`, and ends the request."""

    def __init__(self, app: AsgiApp, stall_timeout_s: float) -> None:
        self._app = app
        self._stall_timeout_s = stall_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        stalled = False

        async def bounded(message: MutableMapping[str, Any]) -> None:
            nonlocal stalled
            if stalled:
                raise Stalled("the client took nothing")
            try:
                async with asyncio.timeout(self._stall_timeout_s):
                    await send(message)
            except TimeoutError:
                stalled = True
                raise Stalled(f"the client took nothing for {self._stall_timeout_s} s") from None

        with contextlib.suppress(Stalled):
            await self._app(scope, receive, bounded)


async def _discard(receive: Receive) -> None:
    """Read a little of what is not wanted: closing over unread bytes makes TCP drop the answer."""
    left_bytes = DISCARD_BYTES_MAX
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_S):
            while left_bytes > 0:
                message = await receive()
                left_bytes -= len(message.get("body", b""))
                if not message.get("more_body"):
                    return


async def _answer(
    send: Send, status: int, reason: str, *, retry_after_s: int | None = None
) -> None:
    fields, body = error_answer(status, reason, retry_after_s=retry_after_s)
    await send({"type": "http.response.start", "status": status, "headers": fields[1:]})
    await send({"type": "http.response.body", "body": body})
