"""What the TCP servers do not do for us, between them and the application.

Plain ASGI, because Starlette's BaseHTTPMiddleware hides disconnects from what it wraps. Over HTTP/3
the bridge does these things itself.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, MutableMapping
from math import inf
from typing import Any

from firstlight.edge_node.http.asgi import Fields, clean_fields, error_answer
from firstlight.edge_node.http.exchange import AsgiApp, Receive, Scope, Send
from firstlight.edge_node.http.limits import HttpLimits
from firstlight.shared.clock import monotonic_s

DISCONNECT = {"type": "http.disconnect"}
DISCARD_BYTES_MAX = 1024 * 1024
_DISCARD_S = 1.0
"""For the last that is read from a client, or told one, that will not be served."""
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})
_WATCH_SHARE = 0.25
"""Of the stall timeout: how often it is looked for."""


class TcpGate:
    """Counts, bounds and announces: the one thing between a TCP server and the application.

    It refuses what is above a limit, gives the scope our lifespan state, adds `alt-svc`, ends
    requests whose client takes nothing, and what is left when a drain runs out of time.
    """

    def __init__(
        self, app: AsgiApp, limits: HttpLimits, state: Mapping[str, Any], h3_port: int | None
    ) -> None:
        self.draining = False
        self._app, self._limits, self._state = app, limits, state
        self._alt_svc = None if h3_port is None else b'h3=":%d"; ma=86400' % h3_port
        self._running: dict[asyncio.Task[Any], TcpRequest] = {}
        self._watching = False

    @property
    def requests(self) -> int:
        """Requests in work now."""
        return len(self._running)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http":
            raise RuntimeError(f"scope {scope['type']!r} is not served")
        task = asyncio.current_task()
        assert task is not None
        request = TcpRequest(receive, send, self._limits.body_bytes_max, self._announced)
        if self.draining or len(self._running) >= self._limits.requests_max:
            reason = (
                "the server is going away" if self.draining else "too many requests are in work"
            )
            await request.answer(503, reason, retry_after_s=1)
            await request.read_on(scope)
            return
        self._running[task] = request
        self._watch_on()
        try:
            if not await request.refused_as_declared(scope):
                await self._app(self._scope(scope), request.receive, request.send)
                await request.read_on(scope)
        except asyncio.CancelledError:
            if not request.stalled:
                raise
            await request.give_up()
        finally:
            del self._running[task]

    async def cancel(self) -> None:
        """End what still runs."""
        tasks = tuple(self._running)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def _announced(self) -> Fields:
        if self._alt_svc is None:
            return []
        return [(b"alt-svc", b"clear" if self.draining else self._alt_svc)]

    def _scope(self, scope: Scope) -> Scope:
        scope = {**scope, "state": dict(self._state)}
        for end in ("client", "server"):  # granian gives the port as text
            if scope.get(end):
                scope[end] = (scope[end][0], int(scope[end][1]))
        return scope

    def _watch_on(self) -> None:
        if not self._watching:
            self._watching = True
            wait_s = self._limits.stall_timeout_s * _WATCH_SHARE
            asyncio.get_running_loop().call_later(wait_s, self._watch)

    def _watch(self) -> None:
        """End requests whose client takes no answer, or has stopped in the middle of its body."""
        self._watching = False
        before_s = monotonic_s() - self._limits.stall_timeout_s
        for task, request in self._running.items():
            if request.waits_since_before(before_s) and not request.stalled:
                request.stalled = True
                task.cancel()
        if self._running:
            self._watch_on()


class TcpRequest:
    """The `receive` and `send` of one request."""

    def __init__(
        self, receive: Receive, send: Send, body_bytes_max: int, announced: Callable[[], Fields]
    ) -> None:
        """`announced`: fields that every answer carries, as of its start."""
        self.stalled = False
        self._sending_since_s = self._reading_since_s = inf
        """When what is under way began; reading counts up to the end of the body."""
        self._body_ended = False
        self._receive, self._send = receive, send
        self._body_bytes_max, self._announced = body_bytes_max, announced
        self._received_bytes = 0
        self._started = self._refused = False

    def waits_since_before(self, time_s: float) -> bool:
        """Whether the client has kept us waiting since then."""
        return min(self._sending_since_s, self._reading_since_s) < time_s

    async def give_up(self) -> None:
        """Tell a client that stopped in the middle of its body, if it can still be told."""
        if not self._started and not self._body_ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DISCARD_S):
                    await self.answer(408, "the body stopped coming")

    async def refused_as_declared(self, scope: Scope) -> bool:
        """Answer 413 if the request says that its body is above the limit; whether it did."""
        declared = [value for name, value in scope["headers"] if name == b"content-length"]
        if all(value.isdigit() and int(value) <= self._body_bytes_max for value in declared):
            return False
        await self._discard()
        await self._refuse_body()
        return True

    async def read_on(self, scope: Scope) -> None:
        """Read a little of a body that was answered unread: ending here would reset its stream in
        HTTP/2, and a client that is still sending may then give up an answer that it has."""
        if not self._body_ended and not self._refused and scope["method"] not in _BODILESS:
            await self._discard()

    async def receive(self) -> MutableMapping[str, Any]:
        """For the application. A body above the limit is answered with 413, and ends here."""
        if self._refused:
            return dict(DISCONNECT)
        if not self._body_ended:
            self._reading_since_s = monotonic_s()
        try:
            message = await self._receive()
        finally:
            self._reading_since_s = inf
        self._body_ended = not message.get("more_body", False)
        self._received_bytes += len(message.get("body", b""))
        if self._received_bytes <= self._body_bytes_max:
            return message
        started, self._refused = self._started, True
        if not started:
            if message.get("more_body"):
                await self._discard()
            await self._refuse_body()
        return dict(DISCONNECT)

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """For the application; silent once the request was refused."""
        self._started = True
        if not self._refused:
            await self._pass_on(message)

    async def answer(self, status: int, reason: str, *, retry_after_s: int | None = None) -> None:
        """Answer in place of the application."""
        fields, body = error_answer(status, reason, retry_after_s=retry_after_s)
        await self._pass_on(
            {"type": "http.response.start", "status": status, "headers": fields[1:]}
        )
        await self._pass_on({"type": "http.response.body", "body": body})

    async def _refuse_body(self) -> None:
        await self.answer(413, f"the body is above {self._body_bytes_max} bytes")

    async def _pass_on(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            fields = clean_fields(message.get("headers") or ())
            message = {**message, "headers": [*fields, *self._announced()]}
        self._sending_since_s = monotonic_s()
        try:
            await self._send(message)
        finally:
            self._sending_since_s = inf

    async def _discard(self) -> None:
        """Read a little of what is not wanted: closing over unread bytes makes TCP drop the
        answer."""
        left_bytes = DISCARD_BYTES_MAX
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_S):
                while left_bytes > 0:
                    message = await self._receive()
                    left_bytes -= len(message.get("body", b""))
                    if not message.get("more_body"):
                        return
