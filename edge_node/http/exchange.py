"""One request and its answer: the `receive` and `send` that an ASGI application is called with.

It stands between the application's task and the connection. Whatever ends a request early
(STOP_SENDING, RESET_STREAM, a closed or idle connection, a client that acknowledges nothing)
arrives here as `disconnect`, and the application sees one `http.disconnect`, even when it starts
only afterwards.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from aioquic.h3.connection import ErrorCode

from firstlight.edge_node.http.asgi import Fields, RequestHead, Response, error_answer
from firstlight.edge_node.http.limits import HttpLimits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

LATE_SENDS_MAX = 16
"""An application that sends on to a client that is gone yields to others after this many."""
PIECE_BYTES = 32 * 1024
"""A longer body is written piece by piece, so that the high-water mark holds for it too."""

log = logging.getLogger(__name__)


class StreamPort(Protocol):
    """What an exchange needs of its connection."""

    def send_fields(self, stream_id: int, fields: Fields, *, last: bool) -> None:
        """Send a field section."""

    def send_body(self, stream_id: int, data: bytes, *, last: bool) -> None:
        """Send body bytes."""

    def wait_for_room(self, exchange: "Exchange") -> None:
        """Call `exchange.room()` when half of the high-water mark is free."""

    def consumed(self, stream_id: int, size_bytes: int) -> None:
        """Give the client credit for body bytes that have been read."""

    def unacked_bytes(self, stream_id: int) -> int:
        """Bytes of the answer that the client has not acknowledged."""

    def stop_request(self, stream_id: int, error_code: int) -> None:
        """Ask the client to send no more of its body."""

    def reset(self, stream_id: int, error_code: int) -> None:
        """Break the answer off, and the request with it."""


class Exchange:
    """The state of one request on one stream."""

    def __init__(
        self, port: StreamPort, stream_id: int, head: RequestHead, limits: HttpLimits, now: float
    ) -> None:
        self.stream_id = stream_id
        self.head = head
        self.task: asyncio.Task[None] | None = None
        self.gone: str | None = None
        """Why the client is no longer there; None while it is."""
        self.acked_bytes = 0
        self.progress_at_s = now
        self._port = port
        self._limits = limits
        self._response = Response(head.method)
        self._body: deque[bytes] = deque()
        self._received_bytes = 0
        self._handed_over = False
        self._late_sends = 0
        self._request_ended = False
        self._end_delivered = False
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()

    @property
    def answered(self) -> bool:
        """Whether all of the answer has been handed to the transport."""
        return self._handed_over

    # From the connection.

    def body_received(self, data: bytes, *, ended: bool) -> bool:
        """Queue a piece of the body. False when nobody will read it: it counts as consumed then."""
        self._request_ended = self._request_ended or ended
        self._received_bytes += len(data)
        if self.gone is not None or self.answered:
            return False
        if self._received_bytes > self._limits.body_bytes_max:
            self.refuse(413, f"the body is above {self._limits.body_bytes_max} bytes")
            return False
        if data:
            self._body.append(data)
        self._readable.set()
        return bool(data)

    def room(self) -> None:
        """Wake a `send` that waited for acknowledgements."""
        self._writable.set()

    def disconnect(self, reason: str) -> None:
        """The client is gone, or will not be served further. Only the first reason counts."""
        if self.gone is None:
            self.gone = reason
            self._drop_body()
            self._readable.set()
            self._writable.set()

    def refuse(self, status: int, reason: str, *, malformed: bool = False) -> None:
        """Answer in place of the application, or reset when it has begun to answer."""
        if self.gone is not None or self.answered:
            return
        stop_code = ErrorCode.H3_MESSAGE_ERROR if malformed else ErrorCode.H3_NO_ERROR
        if self._response.started:
            code = ErrorCode.H3_MESSAGE_ERROR if malformed else ErrorCode.H3_INTERNAL_ERROR
            self._port.reset(self.stream_id, code)
        else:
            self._answer(status, reason)
        if not self._request_ended:
            self._port.stop_request(self.stream_id, stop_code)
        self.disconnect(reason)

    # For the application.

    async def run(self, app: AsgiApp, scope: Scope) -> None:
        """Call the application and make sure that the request ends in exactly one way."""
        try:
            await app(scope, self.receive, self.send)
        except asyncio.CancelledError:
            if self.gone is None and not self.answered:
                self._port.reset(self.stream_id, ErrorCode.H3_REQUEST_CANCELLED)
            self.disconnect("the server cancelled the request")
            raise
        except Exception as error:
            self._app_failed(error)
        else:
            if not self.answered and self.gone is None:
                log.error("%s %s returned without a complete answer", self.head.method, self._path)
                self.refuse(500, "the application did not answer")
        finally:
            self._drop_body()
            if self.gone is None and not self._request_ended:
                self._port.stop_request(self.stream_id, ErrorCode.H3_NO_ERROR)

    async def receive(self) -> MutableMapping[str, Any]:
        """Body messages, then `http.disconnect` once the answer is complete or the client gone."""
        while True:
            if self.gone is not None or self.answered:
                return {"type": "http.disconnect"}
            if self._body:
                data = b"".join(self._body)
                self._body.clear()
                self._port.consumed(self.stream_id, len(data))
                self._end_delivered = self._request_ended
                return {"type": "http.request", "body": data, "more_body": not self._request_ended}
            if self._request_ended and not self._end_delivered:
                self._end_delivered = True
                return {"type": "http.request", "body": b"", "more_body": False}
            self._readable.clear()
            await self._readable.wait()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send a message of the answer; waits while too much is unacknowledged. Silent when
        gone."""
        if self.gone is not None:
            self._late_sends += 1
            if self._late_sends > LATE_SENDS_MAX:  # it must not keep the loop for itself
                await asyncio.sleep(0)
            return
        kind = message["type"]
        if kind == "http.response.start":
            self._port.send_fields(self.stream_id, self._response.start(message), last=False)
        elif kind == "http.response.body":
            data, last = self._response.body(message)
            await self._send_body(data, last=last)
        else:
            raise ValueError(f"message {kind!r} is not part of an HTTP answer")

    async def _send_body(self, data: bytes, *, last: bool) -> None:
        for offset in range(0, max(len(data), 1), PIECE_BYTES):
            while self._port.unacked_bytes(self.stream_id) > self._limits.stream_unacked_bytes_max:
                self._writable.clear()
                self._port.wait_for_room(self)
                await self._writable.wait()
                if self.gone is not None:
                    return
            end = offset + PIECE_BYTES
            self._port.send_body(self.stream_id, data[offset:end], last=last and end >= len(data))
        if last:
            self._handed_over = True
            self._drop_body()
            self._readable.set()

    def _answer(self, status: int, reason: str) -> None:
        fields, body = error_answer(status, reason)
        bodiless = self.head.method == "HEAD"
        self._response.started = self._response.complete = self._handed_over = True
        self._port.send_fields(self.stream_id, fields, last=bodiless)
        if not bodiless:
            self._port.send_body(self.stream_id, body, last=True)

    def _app_failed(self, error: Exception) -> None:
        if self.gone is not None:
            log.info("%s %s: %r after the client left", self.head.method, self._path, error)
            return
        log.error("%s %s failed", self.head.method, self._path, exc_info=error)
        self.refuse(500, "the server failed to answer")  # nothing, when it had answered in full

    def _drop_body(self) -> None:
        waiting = sum(map(len, self._body))
        self._body.clear()
        if waiting:
            self._port.consumed(self.stream_id, waiting)

    @property
    def _path(self) -> str:
        return self.head.target.partition(b"?")[0].decode("ascii")
