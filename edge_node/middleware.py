"""Around every answer: request id, time taken, CORS, counts, and a last resort for bugs.

Pure ASGI: it passes `receive` through untouched, so that a client's disconnect reaches whoever
waits for it.
"""

import logging
import re
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from firstlight.edge_node.openai.errors import error_body, error_headers
from firstlight.edge_node.timeline import Timeline
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import FirstlightError

_log = logging.getLogger(__name__)

MARKS = "firstlight.marks"
"""Key of a request's `Marks` in its ASGI scope."""
TIMELINE = "firstlight.timeline"
"""Key of a request's `Timeline` in its ASGI scope, once it has one."""
_ON_FAILURE = "firstlight.on_failure"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9_,\s-]{1,2048}")
_ALLOW_HEADERS = b"authorization, content-type, idempotency-key, x-request-id"
_EXPOSE_HEADERS = (
    b"x-request-id, openai-processing-ms, retry-after, retry-after-ms, x-should-retry, "
    b"x-firstlight-edge, x-firstlight-core, x-firstlight-region, x-firstlight-request, "
    b"x-firstlight-signature"
)
_PREFLIGHT_AGE_S = b"86400"
_METHODS = b"GET, HEAD, POST, OPTIONS"
_COUNTED_METHODS = {"GET", "POST", "OPTIONS", "HEAD", "PUT", "DELETE", "PATCH"}
_PROTOCOLS = {"1.0": "h1", "1.1": "h1", "2": "h2", "3": "h3"}
CLIENT_WENT = 499


@dataclass(frozen=True, slots=True)
class Marks:
    """What is known of a request before anything reads it."""

    request_id: str
    received_s: float
    """`monotonic_s()` when its headers were here."""
    protocol: str
    """h1, h2 or h3."""


@dataclass(frozen=True, slots=True)
class Access:
    """One request that has ended. All but `wall_s` have few values, so they can label a metric."""

    method: str
    route: str
    """The route's pattern, never the path that was asked for."""
    protocol: str
    status: int
    """499 when the client went away first."""
    wall_s: float


@dataclass(slots=True)
class AccessCounts:
    """Requests by (method, route, protocol, status), and how many run now."""

    ended: Counter[tuple[str, str, str, int]] = field(default_factory=Counter)
    running: int = 0

    def observe(self, access: Access) -> None:
        """Count one that ended."""
        self.ended[access.method, access.route, access.protocol, access.status] += 1


class EdgeMiddleware:
    """The outermost layer of the app."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        counts: AccessCounts,
        on_access: Callable[[Access], None] | None = None,
        on_failure: Callable[[FirstlightError], None] | None = None,
        clock: Callable[[], float] = monotonic_s,
    ) -> None:
        self._app, self._counts, self._on_access, self._clock = app, counts, on_access, clock
        self._on_failure = on_failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; anything but HTTP goes through untouched."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        marks = Marks(
            request_id=_request_id(headers.get(b"x-request-id")),
            received_s=self._clock(),
            protocol=_PROTOCOLS.get(scope.get("http_version", ""), "h1"),
        )
        scope[MARKS], scope[_ON_FAILURE] = marks, self._on_failure
        out = _Out(send, scope, self._clock, cross_origin=b"origin" in headers)
        self._counts.running += 1
        try:
            if scope["method"] == "OPTIONS":
                await _answer_options(headers, out)
            else:
                await self._app(scope, receive, out)
        except Exception:
            _log.exception("request %s failed", marks.request_id)
            if out.status:
                raise  # what was sent cannot be taken back: let the server break the connection
            error = FirstlightError("an internal error: it was logged")
            note_failure(scope, error, self._clock())
            await _answer_error(error, out)
        finally:
            self._counts.running -= 1
            access = Access(
                scope["method"] if scope["method"] in _COUNTED_METHODS else "other",
                getattr(scope.get("route"), "path", "other"),
                marks.protocol,
                out.status if out.complete else CLIENT_WENT,
                self._clock() - marks.received_s,
            )
            self._counts.observe(access)
            if self._on_access is not None:
                self._on_access(access)


class _Out:
    """`send`, with our headers on the start of the answer."""

    def __init__(
        self, send: Send, scope: Scope, clock: Callable[[], float], *, cross_origin: bool
    ) -> None:
        self._send, self._scope, self._clock = send, scope, clock
        self._cross_origin = cross_origin
        self.status, self.complete = 0, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self._headers()]}
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True

    def _headers(self) -> list[tuple[bytes, bytes]]:
        marks: Marks = self._scope[MARKS]
        timeline: Timeline | None = self._scope.get(TIMELINE)
        taken_ms = (self._clock() - marks.received_s) * 1000
        headers = [
            (b"x-request-id", marks.request_id.encode()),
            (b"openai-processing-ms", str(round(taken_ms)).encode()),
        ]
        if timeline is not None:
            headers.append((b"x-firstlight-request", timeline.id.encode()))
        if self._cross_origin:
            # Any origin may ask: a key travels in a header that no browser adds by itself.
            headers.append((b"access-control-allow-origin", b"*"))
            headers.append((b"access-control-expose-headers", _EXPOSE_HEADERS))
        return headers


def note_failure(scope: Scope, error: FirstlightError, now: float) -> None:
    """The request ends with an error: its timeline, if it has one, says so."""
    timeline: Timeline | None = scope.get(TIMELINE)
    if timeline is not None:
        timeline.fail(error, now)
    on_failure: Callable[[FirstlightError], None] | None = scope.get(_ON_FAILURE)
    if on_failure is not None:
        on_failure(error)


def _request_id(given: bytes | None) -> str:
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode()
    return f"req_{uuid.uuid4().hex}"


async def _answer_options(headers: dict[bytes, bytes], send: Send) -> None:
    """A preflight is answered for every path and without a key, as browsers send none."""
    asked = headers.get(b"access-control-request-headers", b"")
    extra = [
        (b"allow", _METHODS),
        (b"content-length", b"0"),
        (b"access-control-allow-methods", _METHODS),
        (
            b"access-control-allow-headers",
            asked if _HEADER_NAMES.fullmatch(asked) else _ALLOW_HEADERS,
        ),
        (b"access-control-max-age", _PREFLIGHT_AGE_S),
        (b"vary", b"access-control-request-headers"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": extra})
    await send({"type": "http.response.body", "body": b""})


async def _answer_error(error: FirstlightError, send: Send) -> None:
    body = error_body(error)
    headers = [(name.encode(), value.encode()) for name, value in error_headers(error).items()]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
