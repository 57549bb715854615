"""`GET /v1/requests/{id}`: what happened to a request, for the tenant that asked it.

The id is the answer's, which every answer of the two POST routes has in its headers, an error too,
or a stream's. Another tenant's request, one that is too old and one that never was look the same.
"""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from firstlight.edge_node.explain import explain
from firstlight.edge_node.tenants import Tenants
from firstlight.edge_node.timeline import Timelines
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import NotFoundError


def timeline_route(timelines: Timelines, tenants: Tenants, edge: str) -> Route:
    """The route; `edge` is this node's name."""

    async def get(request: Request) -> Response:
        tenant = tenants.of(request.headers.get("authorization"))
        id, now = request.path_params["request"], monotonic_s()
        timeline = timelines.find(id, tenant, now)
        if timeline is None:
            raise NotFoundError(
                f"no request {id[:80]!r} is known here; they are forgotten after "
                f"{timelines.limits.keep_s:g} s",
                code="request_not_found",
            )
        return JSONResponse(explain(timeline, edge=edge, now=now))

    return Route("/v1/requests/{request}", get, methods=["GET"])
