"""HTTP/1.1 and HTTP/2 over TLS on a socket of ours, in our loop.

`granian` (its HTTP is Rust: both versions, about a tenth of HTTP/3's cost) or, by configuration,
`uvicorn` (HTTP/1.1 alone, pure Python). Both get the same bound socket, so that a taken port is
noticed when we bind.
"""

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any, Protocol

import uvicorn
from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings, HTTP2Settings
from granian.log import LogLevels
from granian.server.embed import Server as GranianServer

from firstlight.edge_node.http.exchange import AsgiApp
from firstlight.edge_node.http.limits import HttpLimits

BACKLOG = 512
_STOP_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)


class TcpServer(Protocol):
    """A running TCP front."""

    async def start(self) -> None:
        """Accept connections."""

    async def stop(self) -> None:
        """Accept no more and close what is open."""


class Granian:
    """HTTP/1.1 and 2 by granian's embedded server."""

    def __init__(
        self, app: AsgiApp, sock: socket.socket, cert_file: Path, key_file: Path, limits: HttpLimits
    ) -> None:
        self._sock = sock
        self._task: asyncio.Task[None] | None = None
        host, port = sock.getsockname()[:2]
        self._server = GranianServer(
            app,
            address=host,
            port=port,
            interface=Interfaces.ASGINL,  # the lifespan is ours
            http=HTTPModes.auto,
            websockets=False,
            backlog=BACKLOG,
            backpressure=limits.requests_max,
            http1_settings=HTTP1Settings(
                max_buffer_size=max(8192, limits.header_frame_bytes_max),
            ),
            http2_settings=HTTP2Settings(
                initial_connection_window_size=limits.connection_window_bytes,
                initial_stream_window_size=limits.stream_window_bytes,
                max_concurrent_streams=limits.requests_per_connection_max,
                max_headers_size=limits.header_frame_bytes_max,
                max_send_buffer_size=limits.stream_unacked_bytes_max,
            ),
            log_level=LogLevels.error,
            # Incremental: without it, granian's setup would close the handlers of our process.
            log_dictconfig={"incremental": True, "formatters": {}, "handlers": {}, "loggers": {}},
            ssl_cert=cert_file,
            ssl_key=key_file,
            ssl_protocol_min=SSLProtocols.tls12,
        )
        # granian would bind for itself, with SO_REUSEPORT, and so share a taken port in silence.
        self._server._init_shared_socket = self._hand_over  # type: ignore[method-assign]

    def _hand_over(self) -> None:
        # Its type stubs know neither the arguments nor that these attributes change.
        server: Any = self._server
        holder: Any = SocketHolder
        server._ssp = None
        server._shd = holder(self._sock.detach(), False, BACKLOG)  # which closes it from now on

    async def start(self) -> None:
        """Accept connections."""
        self._sock.listen(BACKLOG)
        self._task = asyncio.ensure_future(self._server.serve())
        await asyncio.sleep(0)
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Accept no more and close what is open."""
        if self._task is None:
            return
        self._server.stop()  # type: ignore[no-untyped-call]
        _, late = await asyncio.wait((self._task,), timeout=_STOP_TIMEOUT_S)
        for task in late:
            log.warning("the TCP server did not stop in %s s", _STOP_TIMEOUT_S)
            task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None


class Uvicorn:
    """HTTP/1.1 alone by uvicorn, for a node where granian's young embedded server must not run."""

    def __init__(
        self, app: AsgiApp, sock: socket.socket, cert_file: Path, key_file: Path, limits: HttpLimits
    ) -> None:
        self._sock = sock
        self._task: asyncio.Task[None] | None = None
        configuration = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            backlog=BACKLOG,
            h11_max_incomplete_event_size=limits.header_frame_bytes_max,
            ssl_certfile=str(cert_file),
            ssl_keyfile=str(key_file),
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(configuration)

    async def start(self) -> None:
        """Accept connections."""
        # Not `serve`: that would take the signals of our process.
        self._task = asyncio.ensure_future(self._server._serve([self._sock]))
        while not self._server.started and not self._task.done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Accept no more and close what is open."""
        if self._task is None:
            return
        self._server.should_exit = True
        await asyncio.wait((self._task,), timeout=_STOP_TIMEOUT_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
