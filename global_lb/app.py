"""A load balancer process: control plane for nodes, HTTP API for clients, in one loop."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Sequence
from ipaddress import ip_address
from random import Random
from typing import Any

import uvicorn

from firstlight.global_lb.api import create_admin, create_app
from firstlight.global_lb.balance import Balance
from firstlight.global_lb.config import LbSettings
from firstlight.global_lb.control import ControlPlane
from firstlight.global_lb.drains import TIMEOUT_S, Drains
from firstlight.global_lb.membership import Membership
from firstlight.global_lb.scale import Scaler
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir
from firstlight.shared.door import failing
from firstlight.shared.errors import ConfigError
from firstlight.shared.geography.desk import Desk
from firstlight.shared.geography.geoip import Geoip
from firstlight.shared.geography.signing import load_signer
from firstlight.shared.history_file import History, history_of, sampling
from firstlight.shared.lifecycle import incarnation, ready
from firstlight.shared.redis_client import connect
from firstlight.shared.routing.work import capacity
from firstlight.shared.rpc import split_address
from firstlight.shared.tls import NodeFiles, front_files, node_files
from firstlight.shared.types import Role

BACKLOG = 1024
CONNECTIONS_MAX = 1024
GRACE_S = 2

logger = logging.getLogger("firstlight.lb")


async def main(settings: LbSettings, stop: asyncio.Event) -> None:
    """Serve until `stop`. Raises `ConfigError` if an address is taken or a file is wrong."""
    with history_of(settings.history, settings.node, Role.LB) as history:
        async with failing(settings.faults):
            await _main(settings, stop, history)


async def _main(settings: LbSettings, stop: asyncio.Event, history: History | None) -> None:
    if settings.admin is not None and not _is_loopback(settings.admin):
        raise ConfigError(
            f"admin {settings.admin!r}, expected a loopback address as 127.0.0.1:8482"
        )
    hosts, directory = settings.http.hosts, state_dir() / "tls"
    files = node_files(settings.tls, Role.LB, settings.node, hosts, default_directory=directory)
    front = front_files(
        settings.front, settings.tls, settings.node, hosts, default_directory=directory
    )
    addresses = [settings.http.listen, *([settings.admin] if settings.admin is not None else [])]
    with contextlib.ExitStack() as closing:
        listeners = [
            closing.enter_context(contextlib.closing(_listen(address))) for address in addresses
        ]
        await _serve(settings, files, front, listeners, stop, history)


async def _serve(
    settings: LbSettings,
    files: NodeFiles,
    front: NodeFiles,
    listeners: Sequence[socket.socket],
    stop: asyncio.Event,
    history: History | None,
) -> None:
    membership = Membership()
    balance = Balance(settings.node, monotonic_s(), capacity)
    scaler = Scaler(settings.scale, capacity)
    client = connect("drains.redis", settings.drains.redis, timeout_s=TIMEOUT_S)
    drains = Drains(client)
    plane = ControlPlane(settings.node, incarnation(), membership, balance, scaler, drains, history)
    listening = await plane.start(settings.control.listen, files)
    geoip = Geoip(settings.geoip.directory or state_dir() / "geoip")
    signer = load_signer(
        settings.keys.directory_file, settings.tls.directory or state_dir() / "tls"
    )
    desk = Desk(settings.node, lambda: membership.well(monotonic_s()), geoip, signer)
    app = create_app(
        settings.node,
        membership,
        balance,
        scaler,
        desk,
        ready=lambda: not stop.is_set(),
        now=monotonic_s,
        rng=Random(settings.node),
    )
    admin = create_admin(settings.node, membership, drains, now=monotonic_s)
    fronts = [_Http(app, front), _Http(admin, None)][: len(listeners)]
    serving = [
        asyncio.create_task(http.serve(listener))
        for http, listener in zip(fronts, listeners, strict=True)
    ]
    beside: list[asyncio.Task[Any]] = [
        asyncio.create_task(plane.keep(stop)),
        asyncio.create_task(plane.publish(stop)),
        asyncio.create_task(drains.run(stop)),
        asyncio.create_task(desk.keep(stop)),
        asyncio.create_task(stop.wait()),
    ]
    try:
        for http, task in zip(fronts, serving, strict=True):
            await http.started(task)
        host, _ = split_address(settings.control.listen)
        where = [_address(*listener.getsockname()[:2]) for listener in listeners]
        more = {} if settings.admin is None else {"admin": where[1]}
        ready(settings.node, where[0], control=_address(host, listening.port), **more)
        async with sampling(history, plane.figures):
            done, _ = await asyncio.wait((*serving, *beside), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # raises what ended it
    finally:
        for http in fronts:
            http.stop()
        for task in beside:
            task.cancel()
        await listening.server.stop(grace=0.2)
        await asyncio.gather(*serving, *beside, return_exceptions=True)
        if client is not None:
            await client.aclose()


class _Http:
    """uvicorn, without its own handling of signals and without its own sockets."""

    def __init__(self, app: object, files: NodeFiles | None) -> None:
        """`files`: None for a listener without TLS."""
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                ssl_certfile=None if files is None else files.cert,
                ssl_keyfile=None if files is None else files.key,
                ssl_version=ssl.PROTOCOL_TLS_SERVER,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=GRACE_S,
                server_header=False,
                proxy_headers=False,  # a client is where its packets come from, and nowhere it says
            )
        )
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]

    async def serve(self, listener: socket.socket) -> None:
        await self._server.serve(sockets=[listener])

    async def started(self, serving: "asyncio.Task[Any]") -> None:
        while not (self._server.started or serving.done()):  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0.01)
        if serving.done():
            serving.result()
            raise ConfigError("the HTTP server ended at its start")

    def stop(self) -> None:
        self._server.should_exit = True


def _listen(address: str) -> socket.socket:
    host, port = split_address(address)
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from None
    return listener


def _is_loopback(address: str) -> bool:
    host, _ = split_address(address)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
