"""Both fronts of an edge, as one thing that starts, drains and stops.

HTTP/3 on UDP and HTTP/1.1 and 2 on TCP serve one application object, in one loop, on one port
number, and each TCP answer names the UDP port (`alt-svc`).
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from firstlight.edge_node.http.exchange import AsgiApp
from firstlight.edge_node.http.gate import TcpGate
from firstlight.edge_node.http.lifespan import Lifespan
from firstlight.edge_node.http.limits import HttpLimits
from firstlight.edge_node.http.server import Http3Server
from firstlight.edge_node.http.tcp import Granian, TcpServer, Uvicorn
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError

TcpChoice = Literal["granian", "uvicorn"]
_TCP_SERVERS: dict[str, Callable[..., TcpServer]] = {"granian": Granian, "uvicorn": Uvicorn}
_PORT_TRIES = 32


class Fronts:
    """The HTTP fronts of one edge.

    Raises `ConfigError` from `start` for a port in use (naming it, and TCP or UDP), for a
    certificate that cannot be used, and for an application that does not start.
    """

    def __init__(
        self,
        app: AsgiApp,
        host: str,
        port: int,
        cert_file: Path,
        key_file: Path,
        limits: HttpLimits | None = None,
        tcp: TcpChoice = "granian",
    ) -> None:
        if tcp not in _TCP_SERVERS:
            raise ConfigError(f"tcp is {tcp!r}; it can be {' or '.join(_TCP_SERVERS)}", param="tcp")
        self.port = port
        self._app = app
        self._host = host
        self._cert_file = cert_file
        self._key_file = key_file
        self._limits = limits or HttpLimits()
        self._tcp_choice = tcp
        self._running = contextlib.AsyncExitStack()
        self._http3: Http3Server | None = None
        self._gate: TcpGate | None = None

    @property
    def requests(self) -> int:
        """Requests in work on both fronts."""
        http3 = 0 if self._http3 is None else self._http3.requests
        return http3 + (0 if self._gate is None else self._gate.requests)

    async def start(self) -> None:
        """Bind, start the application, accept. After an error nothing is left open."""
        async with contextlib.AsyncExitStack() as stack:
            tcp_sock, udp_sock = bind_both(self._host, self.port)
            stack.callback(tcp_sock.close)
            stack.callback(udp_sock.close)
            self.port = tcp_sock.getsockname()[1]
            lifespan = Lifespan(self._app)
            http3 = Http3Server(
                self._app,
                cert_file=self._cert_file,
                key_file=self._key_file,
                limits=self._limits,
                state=lifespan.state,
            )
            stack.push_async_callback(lifespan.shutdown)
            await lifespan.startup()
            stack.push_async_callback(http3.stop)
            await http3.start(udp_sock)
            gate = TcpGate(self._app, self._limits, lifespan.state, h3_port=self.port)
            server = _TCP_SERVERS[self._tcp_choice](
                gate, tcp_sock, self._cert_file, self._key_file, self._limits
            )
            stack.push_async_callback(server.stop)
            stack.push_async_callback(gate.cancel)
            await server.start()
            self._http3, self._gate = http3, gate
            self._running = stack.pop_all()

    async def drain(self, grace_s: float) -> None:
        """Take no new requests, let those in work finish for up to `grace_s`, then cancel them."""
        if self._http3 is None or self._gate is None:
            return
        self._gate.draining = True
        http3 = asyncio.ensure_future(self._http3.drain(grace_s))
        deadline_s = monotonic_s() + grace_s
        while self._gate.requests and monotonic_s() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await self._gate.cancel()
        await http3

    async def stop(self) -> None:
        """Stop now: cancel what is in work, close the sockets, shut the application down."""
        await self._running.aclose()


def bind_both(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """A TCP and a UDP socket on one port number; port 0 finds one that is free for both.

    Raises `ConfigError` that names the port and which of the two is taken.
    """
    for _ in range(_PORT_TRIES):
        tcp_sock = _bind(host, port, socket.SOCK_STREAM)
        try:
            udp_sock = _bind(host, tcp_sock.getsockname()[1], socket.SOCK_DGRAM)
        except ConfigError:
            tcp_sock.close()
            if port:
                raise
            continue
        return tcp_sock, udp_sock
    raise ConfigError(f"no port was free for both TCP and UDP on {host} in {_PORT_TRIES} tries")


def _bind(host: str, port: int, kind: socket.SocketKind) -> socket.socket:
    protocol = "tcp" if kind == socket.SOCK_STREAM else "udp"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=kind)[0]
        sock = socket.socket(family, kind)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error}", param="host") from error
    try:
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets take this over: an event must not wait for the last one's ACK.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind(address)
        if kind == socket.SOCK_STREAM:
            sock.listen()
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"{protocol} port {port} on {host} cannot be used: {error.strerror}", param="port"
        ) from error
    return sock
