"""What a load balancer answers over HTTP: the edges, the mesh, where requests go, what to scale.

Operators have an app of their own, on loopback: what changes anything is only there.
"""

from collections.abc import Callable
from dataclasses import asdict
from random import Random
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from firstlight.global_lb.balance import Balance, row_words
from firstlight.global_lb.directory import directory_routes
from firstlight.global_lb.drains import Drains
from firstlight.global_lb.membership import LEASE_S, Lease, Membership
from firstlight.global_lb.scale import Scaler
from firstlight.global_lb.state import route_of
from firstlight.shared import telemetry
from firstlight.shared.errors import FirstlightError, NotFoundError
from firstlight.shared.geography.desk import Desk
from firstlight.shared.types import Role

NAME_CHARS_MAX = 200
PROMPT_TOKENS_MAX = 1 << 24
NO_STORE = {"cache-control": "no-store"}

Name = Annotated[str, Query(max_length=NAME_CHARS_MAX)]


def create_app(
    node: str,
    membership: Membership,
    balance: Balance,
    scaler: Scaler,
    desk: Desk,
    *,
    ready: Callable[[], bool],
    now: Callable[[], float],
    rng: Random,
) -> FastAPI:
    """The ASGI app; errors have OpenAI's shape."""
    app = FastAPI(title="Firstlight load balancer", docs_url=None, redoc_url=None, openapi_url=None)
    _add_errors(app)

    app.include_router(directory_routes(desk))

    @app.get("/v1/mesh")
    async def mesh() -> Any:
        at = now()
        suspects = membership.suspects(at)
        data = [
            _lease(lease, at) | {"suspect": lease.report.info.node in suspects}
            for lease in membership.live(at)
        ]
        return JSONResponse({"object": "list", "lb": node, "data": data}, headers=NO_STORE)

    @app.get("/v1/route")
    async def route(
        edge: Name,
        prompt_tokens: Annotated[int, Query(ge=1, le=PROMPT_TOKENS_MAX)] = 100,
        model: Name = "",
    ) -> Any:
        at = now()
        leases = membership.live(at)
        asked = next((item.report for item in leases if item.report.info.node == edge), None)
        if asked is None or asked.info.role is not Role.EDGE:
            raise NotFoundError(f"no edge {edge!r} lives", param="edge", code="edge_not_found")
        chosen = route_of(
            asked,
            leases,
            prompt_tokens=prompt_tokens,
            model=model,
            row=balance.table.get(asked.info.region),
            now=at,
            rng=rng,
        )
        return JSONResponse({"lb": node, "edge": edge, **asdict(chosen)}, headers=NO_STORE)

    @app.get("/v1/spill")
    async def spill() -> Any:
        rows = row_words(balance.table, balance.spill.reasons)
        return JSONResponse({"lb": node, "rows": rows}, headers=NO_STORE)

    @app.get("/v1/scale")
    async def scale() -> Any:
        data = [asdict(region) for region in scaler.regions]
        return JSONResponse({"object": "list", "lb": node, "data": data}, headers=NO_STORE)

    _add_health(app, ready, lambda: {"geography": desk.geoip.detail()})
    return app


def create_admin(
    node: str, membership: Membership, drains: Drains, *, now: Callable[[], float]
) -> FastAPI:
    """The ASGI app for operators."""
    app = FastAPI(title="Firstlight operators", docs_url=None, redoc_url=None, openapi_url=None)
    _add_errors(app)

    @app.get("/v1/drain")
    async def draining() -> Any:
        return JSONResponse(_drains(node, drains), headers=NO_STORE)

    @app.post("/v1/drain")
    async def drain(wanted: Drain) -> Any:
        known = any(lease.report.info.node == wanted.node for lease in membership.live(now()))
        if wanted.drain and not known:
            raise NotFoundError(
                f"no node {wanted.node!r} lives", param="node", code="node_not_found"
            )
        await drains.set(wanted.node, wanted.drain)
        return JSONResponse(_drains(node, drains), headers=NO_STORE)

    _add_health(app, lambda: True, dict)
    return app


class Drain(BaseModel):
    """What an operator wants of a node."""

    model_config = ConfigDict(extra="forbid")

    node: Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]
    drain: bool = True


def _drains(node: str, drains: Drains) -> dict[str, Any]:
    """The list, and whether it outlives this process."""
    return {
        "lb": node,
        "draining": sorted(drains.nodes),
        "whole": drains.whole,
        "kept": drains.kept,
    }


def _add_health(
    app: FastAPI, ready: Callable[[], bool], more: Callable[[], dict[str, object]]
) -> None:
    @app.get("/livez")
    async def livez() -> Any:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz")
    async def readyz() -> Any:
        well = ready()
        status = {"status": "ok" if well else "not ready", **more()}
        return JSONResponse(status, 200 if well else 503)

    @app.get("/metrics")
    async def metrics() -> Any:
        return Response(telemetry.render(), media_type=telemetry.CONTENT_TYPE)


def error_body(
    message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(FirstlightError)
    async def ours(request: Request, error: FirstlightError) -> JSONResponse:
        body = error_body(error.message, error.openai_type, param=error.param, code=error.code)
        return JSONResponse(body, error.http_status)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        param = str(first["loc"][-1])
        message = f"{param}: {first['msg']}"
        if isinstance(first["input"], bytes):  # JSON is read only as JSON: no page's form drains
            param, said = "content-type", request.headers.get("content-type")
            called = f"content-type {said[:80]!r}" if said else "no content-type"
            message = f"{called}, expected 'application/json'"
        elif first["type"] != "missing":
            message += f", got {str(first['input'])[:80]!r}"
        return JSONResponse(error_body(message, "invalid_request_error", param=param), 400)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path[:200]}: {error.detail}"
        kind = "invalid_request_error" if error.status_code < 500 else "server_error"
        body = error_body(message, kind, code=_http_code(error.status_code))
        return JSONResponse(body, error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body("internal error", "server_error"), 500)


def _http_code(status: int) -> str | None:
    return {404: "not_found", 405: "method_not_allowed"}.get(status)


def _lease(lease: Lease, now: float) -> dict[str, Any]:
    report = lease.report
    return {
        **asdict(report.info),
        "seq": report.seq,
        "age_s": round(max(0.0, now - lease.heard_at), 3),
        "expires_in_s": round(LEASE_S - (now - lease.heard_at), 3),
        "load": asdict(report.load),
        "rtt_ms": dict(report.rtt_ms),
    }
