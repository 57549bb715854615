"""HTTP/1.1 and HTTP/2 by httpx, in the shape that all versions share."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import httpcore  # noqa: F401  httpx loads it with the first client: not in the middle of a request
import httpx

from firstlight.infra.client.response import HeaderMap, Marks, Response, StreamResponse, read_whole
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError, PeerError

READ_TIMEOUT_S = 600.0


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """What to trust: the certificates in `ca_file`, or the system's. To make one takes
    milliseconds, so who makes many clients makes it once. Raises `ConfigError`."""
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use the CA file {ca_file}: {error}") from error


class TcpClient:
    """One client over TCP. httpx cannot reset an HTTP/2 stream, so a cancelled one costs the
    connection."""

    def __init__(
        self,
        base_url: str,
        *,
        http2: bool,
        ca_file: Path | None,
        server_name: str | None,
        connect_timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._base_url = base_url
        self._server_name = server_name
        self._http2 = http2
        self._streams: dict[socket.socket, Any] = {}
        """Of each connection that is open the stream of httpcore below TLS, which a handshake that
        is broken off leaves open."""
        self._connected_s: float | None = None
        self._connecting_s: float | None = None
        self._rtt_s: float | None = None
        self._open = 0
        self._client = httpx.AsyncClient(
            base_url=base_url,
            http1=not http2,
            http2=http2,
            verify=tls or tls_context(ca_file),
            trust_env=False,
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=connect_timeout_s),
            limits=httpx.Limits(max_connections=None if not http2 else 1),
        )

    @property
    def alive(self) -> bool:
        """Whether it has connected; what the server ended meanwhile, the next request finds out."""
        return self._connected_s is not None

    @property
    def rtt_s(self) -> float | None:
        """How long the shortest TCP handshake took."""
        return self._rtt_s

    @property
    def peer(self) -> tuple[str, int] | None:
        """The server's address."""
        for sock in self._streams:
            with suppress(OSError):
                host, port, *_ = sock.getpeername()
                return str(host), int(port)
        return None

    async def connect(self) -> object:
        """Be connected: httpx connects with a request, so this is one that every node answers."""
        return None if self.alive else await self.request("GET", "/livez")

    async def request(
        self, method: str, path: str, headers: HeaderMap | None = None, body: bytes = b""
    ) -> Response:
        """A whole request and its whole answer."""
        return await read_whole(self.stream(method, path, headers, body))

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, headers: HeaderMap | None = None, body: bytes = b""
    ) -> AsyncIterator[StreamResponse]:
        """A request whose answer is read as it comes; leaving the block early cancels it."""
        if self._client.is_closed:
            raise PeerError(f"{self._base_url}: this client was closed")
        marks = Marks(monotonic_s(), connected_s=self._connected_s)
        extensions: dict[str, Any] = {"trace": self._tracer(marks)}
        if self._server_name is not None:
            extensions["sni_hostname"] = self._server_name
        request = self._client.build_request(
            method, path, headers=dict(headers or {}), content=body or None, extensions=extensions
        )
        self._open += 1
        try:
            response = await self._client.send(request, stream=True)
            marks.headers_s = marks.headers_s or monotonic_s()
            try:
                yield StreamResponse(
                    response.status_code,
                    {name.lower(): value for name, value in response.headers.items()},
                    marks,
                    self._chunks(response),
                    "2" if self._http2 else "1",
                )
            finally:
                unread = not response.is_stream_consumed
                await response.aclose()
                if unread and self._http2 and self._open == 1:
                    await self._drop_connections()
        except httpx.HTTPError as error:
            raise self._broken(error) from error
        finally:
            self._open -= 1

    async def aclose(self) -> None:
        """Close in good order."""
        await self._client.aclose()
        await self._close_streams()

    async def abort(self) -> None:
        """Close at once, in the middle of whatever is going on."""
        await self._drop_connections()
        with suppress(httpx.HTTPError, RuntimeError):
            await self._client.aclose()

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close in good order."""
        await self.aclose()

    async def _chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        try:
            async for chunk in response.aiter_raw():
                yield chunk
        except httpx.HTTPError as error:
            raise self._broken(error) from error

    def _broken(self, error: httpx.HTTPError) -> PeerError:
        reason = str(error) or f"the connection broke ({type(error).__name__})"
        return PeerError(f"{self._base_url}: {reason}")

    async def _drop_connections(self) -> None:
        for sock in self._streams:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._connected_s = None
        await self._close_streams()
        await asyncio.sleep(0)

    async def _close_streams(self) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            with suppress(OSError):
                await stream.aclose()

    def _note_connected(self, stream: Any, marks: Marks) -> None:
        ended = [sock for sock in self._streams if sock.fileno() < 0]
        for sock in ended:
            del self._streams[sock]
        self._streams[stream.get_extra_info("socket")] = stream
        now = marks.connected_s = self._connected_s = monotonic_s()
        if self._connecting_s is not None:
            took_s, self._connecting_s = now - self._connecting_s, None
            self._rtt_s = took_s if self._rtt_s is None else min(took_s, self._rtt_s)

    def _tracer(self, marks: Marks) -> Any:
        async def trace(event: str, info: dict[str, Any]) -> None:
            if event == "connection.connect_tcp.started":
                self._connecting_s = monotonic_s()
            elif event == "connection.connect_tcp.complete":
                self._note_connected(info["return_value"], marks)
            elif event == "connection.start_tls.complete":
                marks.connected_s = self._connected_s = monotonic_s()
            elif event.endswith(".send_request_body.complete"):
                marks.sent_s = monotonic_s()
            elif event.endswith(".receive_response_headers.complete"):
                marks.headers_s = monotonic_s()

        return trace
