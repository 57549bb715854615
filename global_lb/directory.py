"""What a load balancer answers about edges, as routes for its app."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from firstlight.shared.geography.desk import Desk, Said


def directory_routes(desk: Desk) -> APIRouter:
    """`/v1/edges`, `/v1/keys`, `/v1/rtt` and `/v1/steering`."""
    routes = APIRouter()

    @routes.get("/v1/edges")
    async def edges(request: Request) -> Response:
        return _response(desk.edges(request.url.query, _peer(request)))

    @routes.get("/v1/keys")
    async def keys() -> Response:
        return _response(desk.keys())

    @routes.post("/v1/rtt")
    async def rtt(request: Request) -> Response:
        return _response(await desk.tell(request.stream(), _peer(request)), 202)

    @routes.get("/v1/steering")
    async def steering(request: Request) -> Response:
        return _response(desk.steering(request.headers.get("authorization")))

    return routes


def _response(said: Said, status: int = 200) -> Response:
    return Response(said.body, status, headers=said.headers)


def _peer(request: Request) -> str | None:
    return None if request.client is None else request.client.host
