"""A load balancer process: control plane for nodes, HTTP API for clients, in one loop."""

import asyncio
import contextlib
import logging
import socket
import ssl
from random import Random
from typing import Any

import uvicorn

from firstlight.global_lb.api import create_app
from firstlight.global_lb.config import LbSettings
from firstlight.global_lb.control import ControlPlane
from firstlight.global_lb.membership import Membership
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir
from firstlight.shared.door import failing
from firstlight.shared.errors import ConfigError
from firstlight.shared.geography.desk import Desk
from firstlight.shared.geography.geoip import Geoip
from firstlight.shared.geography.signing import load_signer
from firstlight.shared.history_file import History, history_of, sampling
from firstlight.shared.lifecycle import ready
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
    hosts, directory = settings.http.hosts, state_dir() / "tls"
    files = node_files(settings.tls, Role.LB, settings.node, hosts, default_directory=directory)
    front = front_files(
        settings.front, settings.tls, settings.node, hosts, default_directory=directory
    )
    with contextlib.closing(_listen(settings.http.listen)) as listener:
        await _serve(settings, files, front, listener, stop, history)


async def _serve(
    settings: LbSettings,
    files: NodeFiles,
    front: NodeFiles,
    listener: socket.socket,
    stop: asyncio.Event,
    history: History | None,
) -> None:
    membership = Membership()
    plane = ControlPlane(settings.node, membership, history)
    listening = await plane.start(settings.control.listen, files)
    geoip = Geoip(settings.geoip.directory or state_dir() / "geoip")
    signer = load_signer(
        settings.keys.directory_file, settings.tls.directory or state_dir() / "tls"
    )
    desk = Desk(
        settings.node,
        lambda: (lease.report for lease in membership.live(monotonic_s())),
        geoip,
        signer,
    )
    app = create_app(
        settings.node,
        membership,
        desk,
        ready=lambda: not stop.is_set(),
        now=monotonic_s,
        rng=Random(settings.node),
    )
    http = _Http(app, front)
    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(http.serve(listener)),
        asyncio.create_task(plane.keep(stop)),
        asyncio.create_task(desk.keep(stop)),
        asyncio.create_task(stop.wait()),
    ]
    try:
        await http.started(tasks[0])
        host, _ = split_address(settings.control.listen)
        ready(
            settings.node,
            _address(*listener.getsockname()[:2]),
            control=_address(host, listening.port),
        )
        async with sampling(history, plane.figures):
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # raises what ended it
    finally:
        http.stop()
        for task in tasks[1:]:
            task.cancel()
        await listening.server.stop(grace=0.2)
        await asyncio.gather(*tasks, return_exceptions=True)


class _Http:
    """uvicorn, without its own handling of signals and without its own sockets."""

    def __init__(self, app: object, files: NodeFiles) -> None:
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                ssl_certfile=files.cert,
                ssl_keyfile=files.key,
                ssl_version=ssl.PROTOCOL_TLS_SERVER,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=GRACE_S,
                server_header=False,
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


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
