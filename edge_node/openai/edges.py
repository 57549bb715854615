"""What an edge answers about edges, and how it sends a client on to one that is much nearer.

    POST /v1/chat/completions ─► far from here, near another? ─► 307 there, before the body is read

Clients drop an `Authorization` header when they are sent to another host. So only requests without
credentials are sent on, and those that say by `x-firstlight-follow: 1` that they will bring them.
Who chooses its edge itself says `x-firstlight-follow: 0`, and stays.
"""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from firstlight.shared import telemetry
from firstlight.shared.geography.desk import REDIRECTED, Desk, Said

SENT_ON = frozenset({"/v1/chat/completions", "/v1/completions"})
FOLLOW = b"x-firstlight-follow"
_CREDENTIALS = frozenset({b"authorization", b"cookie", b"proxy-authorization"})


def edge_routes(desk: Desk) -> list[Route]:
    """`/v1/edges`, `/v1/keys`, `/v1/rtt` and `/v1/steering`."""

    async def edges(request: Request) -> Response:
        return _response(desk.edges(request.url.query, _peer(request.scope)))

    async def keys(_: Request) -> Response:
        return _response(desk.keys())

    async def rtt(request: Request) -> Response:
        return _response(await desk.tell(request.stream(), _peer(request.scope)), 202)

    async def steering(request: Request) -> Response:
        return _response(desk.steering(request.headers.get("authorization")))

    return [
        Route("/v1/edges", edges, methods=["GET"]),
        Route("/v1/keys", keys, methods=["GET"]),
        Route("/v1/rtt", rtt, methods=["POST"]),
        Route("/v1/steering", steering, methods=["GET"]),
    ]


class SendOn:
    """Around the routes: answers 307 where another edge is much nearer to the client."""

    def __init__(self, app: ASGIApp, *, desk: Desk) -> None:
        self._app, self._desk = app, desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        where = self._elsewhere(scope) if scope["type"] == "http" else None
        if where is None:
            await self._app(scope, receive, send)
            return
        telemetry.REDIRECTS.inc()
        headers = {"location": where, "cache-control": "no-store"}
        await Response(status_code=307, headers=headers)(scope, receive, send)

    def _elsewhere(self, scope: Scope) -> str | None:
        if scope["method"] != "POST" or scope["path"] not in SENT_ON:
            return None
        headers = dict(scope["headers"])
        if b"idempotency-key" in headers or not _follows(headers):
            return None
        query = scope["query_string"].decode("latin-1")
        already = any(name == REDIRECTED for name, _ in parse_qsl(query, keep_blank_values=True))
        there = self._desk.nearer(_peer(scope), already=already)
        if there is None:
            return None
        again = f"{query}&{REDIRECTED}=1" if query else f"{REDIRECTED}=1"
        return f"https://{there.edge.info.address}{scope['path']}?{again}"


def _follows(headers: Mapping[bytes, bytes]) -> bool:
    """Whether who asks would go elsewhere, and have there all that it has here."""
    said = headers.get(FOLLOW)
    return said == b"1" if said is not None else _CREDENTIALS.isdisjoint(headers)


def _response(said: Said, status: int = 200) -> Response:
    return Response(said.body, status, headers=said.headers)


def _peer(scope: Scope) -> str | None:
    client = scope.get("client")
    return None if client is None else str(client[0])
