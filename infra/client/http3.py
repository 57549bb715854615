"""An HTTP/3 client on aioquic: one connection, many streams, cancel by STOP_SENDING and
RESET_STREAM.

httpx has no HTTP/3, and the tests need to break off in every way that QUIC knows.
"""

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from aioquic._buffer import Buffer
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic import events as quic_events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import NetworkAddress, QuicConnection
from aioquic.quic.packet import QuicErrorCode, QuicProtocolVersion, is_long_header, pull_quic_header
from aioquic.tls import AlertBadCertificate, CipherSuite, Direction, Epoch, Group

from firstlight.infra.client.response import HeaderMap, Marks, Response, StreamResponse, read_whole
from firstlight.infra.client.trust import Trust, trust_in
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError, PeerError

# aioquic logs what ends a connection; here that is an error of ours to the caller, said once.
logging.getLogger("quic").addHandler(logging.NullHandler())

MIB = 1024 * 1024
UNREAD_BYTES_MAX = 64 * MIB
"""A caller that does not read loses its stream before it loses its memory."""
PING_PERIOD_S = 0.5
"""A ping after so long a silence keeps NATs and idle timers awake, and shows in time that nobody
answers any more."""
SILENCE_S = 1.5
"""A server that acknowledges nothing for this long after a ping is gone: found out within 3 s of
its last packet, since a ping goes out within two periods, and a look comes once a period."""
WARM_PING_PERIOD_S = 10.0
"""Between pings that keep an idle connection warm: well within idle timers of 30 s."""
REASON_CHARS_MAX = 200
"""Of why a connection is closed: four bytes each at most, of a packet of 1,200."""
_NOWHERE = ("", 0)
KEY_GROUPS = (Group.X25519, Group.SECP256R1)
"""A first packet carries a key of each: every server of TLS 1.3 has one of them (RFC 8446 section
9.1), and two more, which aioquic would make as well, cost a client a millisecond."""


class ClientQuic(QuicConnection):
    """The client's side of one QUIC connection. What takes neither an address nor the time is made
    before there is either: keys, and the first packet's content."""

    def __init__(self, configuration: QuicConfiguration, trust: Trust) -> None:
        """`configuration`: with a server's name, and without a check of its certificate by TLS:
        `trust` is asked."""
        assert configuration.server_name is not None
        assert configuration.verify_mode is ssl.CERT_NONE, configuration.verify_mode
        super().__init__(configuration=configuration)
        self.trust, self._server_name = trust, configuration.server_name
        super().connect(_NOWHERE, now=0.0)
        self.h3 = H3Connection(self)
        """No other protocol is offered, so what it sends first waits for the keys."""

    def connect(self, addr: NetworkAddress, now: float) -> None:
        """Begin the handshake; once. The timers begin with the first packet."""
        del now
        (path,) = self._network_paths
        assert path.addr == _NOWHERE, path.addr
        path.addr = addr

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        possible = self.tls._supported_groups
        self.tls._supported_groups = [group for group in KEY_GROUPS if group in possible]

    def _update_traffic_key(
        self, direction: Direction, epoch: Epoch, cipher_suite: CipherSuite, secret: bytes
    ) -> None:
        """Install a key; none for what clients send and read before the server is known."""
        if epoch is Epoch.ONE_RTT and direction is Direction.DECRYPT:
            if self.tls._peer_certificate is None:
                raise AlertBadCertificate("it has no certificate")
            chain = self.tls._peer_certificate_chain
            self.trust.check(self.tls._peer_certificate, chain, self._server_name)
            # As RFC 9001 section 4.9.1 says once a packet of the handshake is sent; and the one
            # that is sent next need not acknowledge what those after it imply.
            self._discard_epoch(Epoch.INITIAL)
        super()._update_traffic_key(direction, epoch, cipher_suite, secret)

    def close(
        self,
        error_code: int = QuicErrorCode.NO_ERROR,
        frame_type: int | None = None,
        reason_phrase: str = "",
    ) -> None:
        """Begin to close. aioquic quotes what a server sent in its reasons, and fails at one that
        does not fit into a packet."""
        super().close(error_code, frame_type, reason_phrase[:REASON_CHARS_MAX])


@dataclass
class _Stream:
    marks: Marks
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    chunks: deque[bytes] = field(default_factory=deque)
    unread_bytes: int = 0
    ended: bool = False
    broken: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Http3Protocol(QuicConnectionProtocol):
    """The asyncio side of one client connection."""

    def __init__(self, quic: ClientQuic) -> None:
        super().__init__(quic)
        self.h3 = quic.h3
        self.streams: dict[int, _Stream] = {}
        self.connected: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.connected.add_done_callback(_heed)
        self.heard = True
        """Whether a datagram came since the last look."""
        self.asked_s: float | None = None
        """When the first ping went out since the last datagram came."""
        self.ended: str | None = None
        self.reading = True
        """False makes this a client that stops reading: it takes no datagram and acknowledges
        nothing."""

    @property
    def quic(self) -> QuicConnection:
        """The QUIC connection, for tests that break rules on purpose."""
        return self._quic

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        """One datagram from the server: who waits for what is in it goes on before it is
        acknowledged."""
        if self.reading:
            assert isinstance(data, bytes)
            self.heard, self.asked_s = True, None
            if self.connected.done():
                self._take(data, addr)
                return
            handshake_bytes = _handshake_bytes(data)
            self._take(data[:handshake_bytes], addr)
            if later := data[handshake_bytes:]:
                # What a server says of itself meanwhile can wait until the request has left.
                self._loop.call_soon(self._take, later, addr)

    def _take(self, data: bytes, addr: Any) -> None:
        self._quic.receive_datagram(data, addr, now=self._loop.time())
        self._process_events()
        self._transmit_soon()

    def transmit(self) -> None:
        """Send what is due, unless the socket was closed meanwhile."""
        if self._transport is not None and not self._transport.is_closing():
            super().transmit()

    def error_received(self, exc: Exception) -> None:
        """Nobody listens at that port, or not any more."""
        if not self.connected.done():
            self.connected.set_exception(PeerError(f"nobody answers: {exc}"))
        elif isinstance(exc, ConnectionRefusedError):
            self.end(f"nobody answers any more: {exc}")

    def quic_event_received(self, event: quic_events.QuicEvent) -> None:
        """Act on one QUIC event."""
        if isinstance(event, quic_events.HandshakeCompleted) and not self.connected.done():
            self.connected.set_result(monotonic_s())
        elif isinstance(event, quic_events.ConnectionTerminated):
            self.end(event.reason_phrase or f"code 0x{event.error_code:x}")
        elif isinstance(event, quic_events.StreamReset):
            self._break(event.stream_id, f"the server reset the stream: 0x{event.error_code:x}")
        for http_event in self.h3.handle_event(event):
            self._on_http(http_event)

    def end(self, reason: str) -> None:
        """Nothing more will come: every stream is told."""
        self.ended = reason
        if not self.connected.done():
            self.connected.set_exception(PeerError(f"the server refused the connection: {reason}"))
        for stream_id in tuple(self.streams):
            self._break(stream_id, f"the connection ended: {reason}")

    def _break(self, stream_id: int, reason: str) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None and not stream.ended:
            stream.broken = reason
            stream.changed.set()

    def _on_http(self, event: H3Event) -> None:
        if not isinstance(event, HeadersReceived | DataReceived):
            return
        stream = self.streams.get(event.stream_id)
        if stream is None:
            return
        if isinstance(event, DataReceived):
            stream.chunks.append(event.data)
            stream.unread_bytes += len(event.data)
            if stream.unread_bytes > UNREAD_BYTES_MAX:
                self._break(event.stream_id, f"{stream.unread_bytes} bytes were not read")
        elif stream.status is None:
            fields = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            status = int(fields.pop(":status"))
            if status >= 200:
                stream.status, stream.headers = status, fields
                stream.marks.headers_s = monotonic_s()
        stream.ended = stream.ended or event.stream_ended
        stream.changed.set()


def _handshake_bytes(datagram: bytes) -> int:
    """How many bytes at its head are packets of a handshake: those with a long header."""
    buffer = Buffer(data=datagram)
    end = 0
    with suppress(ValueError):  # what follows is no packet, which is for QUIC to find out
        while end < len(datagram) and is_long_header(datagram[end]):
            end += pull_quic_header(buffer, host_cid_length=0).packet_length
            buffer.seek(end)
    return end or len(datagram)


async def _address(host: str, port: int) -> str:
    """Where a datagram to `host` goes, by IPv4 if there is a choice. Raises `OSError`, or
    `UnicodeError` for what can be no name."""
    try:
        return str(ipaddress.ip_address(host))  # what is an address already needs no thread
    except ValueError:
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        return str(min(infos, key=lambda info: info[0] != socket.AF_INET)[4][0])


def _heed(connected: "asyncio.Future[float]") -> None:
    """Who waits for the connection hears of its failure; nobody else has to."""
    if not connected.cancelled():
        connected.exception()


class Http3Client:
    """One HTTP/3 connection to one server."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        ca_file: Path | None = None,
        server_name: str | None = None,
        connect_timeout_s: float = 5.0,
        keep_warm_s: float = 0.0,
    ) -> None:
        """`keep_warm_s`: for so long after its last request the connection is kept alive."""
        self.authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._host = host
        self._port = port
        self._connect_timeout_s = connect_timeout_s
        self._keep_warm_s = keep_warm_s
        self._used_s = self._warmed_s = 0.0
        self._configuration = QuicConfiguration(
            is_client=True,
            alpn_protocols=H3_ALPN,
            supported_versions=[QuicProtocolVersion.VERSION_1],
            server_name=server_name or host,
            verify_mode=ssl.CERT_NONE,
            idle_timeout=30.0,
            max_data=16 * MIB,
            max_stream_data=4 * MIB,
        )
        self._ca_file = ca_file
        self._ready: ClientQuic | None = ClientQuic(self._configuration, trust_in(ca_file))
        """For the first connection: who makes a client ahead of its first request waits less."""
        self._protocol: Http3Protocol | None = None
        self._transport: asyncio.DatagramTransport | None = None
        self._connected_s: float | None = None
        self._connecting = asyncio.Lock()
        self._failure: tuple[float, PeerError] | None = None
        """When connecting failed last, and why."""
        self._pinging: asyncio.TimerHandle | None = None

    @property
    def alive(self) -> bool:
        """Whether there is a connection that nobody has ended."""
        return self._protocol is not None and self._protocol.ended is None

    @property
    def rtt_s(self) -> float | None:
        """The shortest round trip that this connection saw."""
        recovery = None if self._protocol is None else self._protocol.quic._loss
        return recovery._rtt_min if recovery is not None and recovery._rtt_initialized else None

    @property
    def peer(self) -> tuple[str, int] | None:
        """The server's address."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return None if name is None else (str(name[0]), int(name[1]))

    async def connect(self) -> Http3Protocol:
        """The connection, made when there is none.

        Raises `PeerError` within the connect timeout: who waited while another one tried in vain
        shares its failure.
        """
        asked_s = monotonic_s()
        async with self._connecting:
            if self._protocol is not None and self._protocol.ended is None:
                return self._protocol
            if self._failure is not None and self._failure[0] > asked_s:
                raise PeerError(self._failure[1].message)
            try:
                return await self._connect()
            except BaseException as error:  # who gives up as well: half a connection is none
                await self._close_transport()
                if isinstance(error, PeerError):
                    self._failure = (monotonic_s(), error)
                raise

    async def _connect(self) -> Http3Protocol:
        await self._close_transport()
        loop = asyncio.get_running_loop()
        try:
            address = await _address(self._host, self._port)
            trust = trust_in(self._ca_file)  # the file may be younger than this client
            quic = self._ready or ClientQuic(self._configuration, trust)
            self._ready, quic.trust = None, trust
            # Connected, so that a closed port is an error at once and not a timeout.
            self._transport, self._protocol = await loop.create_datagram_endpoint(
                lambda: Http3Protocol(quic), remote_addr=(address, self._port)
            )
        except (OSError, UnicodeError, ConfigError) as error:
            raise PeerError(f"{self.authority}: {error}") from error
        peer = self._transport.get_extra_info("peername")
        self._protocol.connect(peer)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                # With nothing between: the request leaves with the handshake's last packet.
                self._connected_s = await self._protocol.connected
        except TimeoutError:
            raise PeerError(
                f"{self.authority} did not answer over HTTP/3 in {self._connect_timeout_s} s"
            ) from None
        except PeerError as error:
            raise PeerError(f"{self.authority}: {error}") from error
        self._used_s = self._warmed_s = self._connected_s
        self._pinging = loop.call_later(PING_PERIOD_S, self._ping)
        return self._protocol

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
        marks = Marks(monotonic_s())
        protocol = await self.connect()
        marks.connected_s = self._connected_s
        stream_id = protocol.quic.get_next_available_stream_id()
        stream = protocol.streams[stream_id] = _Stream(marks)
        fields = [
            (b":method", method.encode()),
            (b":scheme", b"https"),
            (b":authority", self.authority.encode()),
            (b":path", path.encode()),
            *(
                (name.lower().encode(), value.encode("latin-1"))
                for name, value in (headers or {}).items()
            ),
        ]
        if body:
            fields.append((b"content-length", b"%d" % len(body)))
        try:
            protocol.h3.send_headers(stream_id, fields, end_stream=not body)
            if body:
                protocol.h3.send_data(stream_id, body, end_stream=True)
            protocol.transmit()
            marks.sent_s = monotonic_s()
            while stream.status is None:
                if stream.ended:
                    raise PeerError(f"{self.authority}: the stream ended without an answer")
                await self._change(stream)
            yield StreamResponse(stream.status, stream.headers, marks, self._chunks(stream), "3")
        finally:
            del protocol.streams[stream_id]
            if not stream.ended and (stream.broken is None or stream.unread_bytes):
                self._cancel(protocol, stream_id)

    async def aclose(self) -> None:
        """Close in good order."""
        if self._protocol is not None:
            self._protocol.close(ErrorCode.H3_NO_ERROR)
        await self._close_transport()

    async def abort(self) -> None:
        """CONNECTION_CLOSE with an error, in the middle of whatever is going on."""
        if self._protocol is not None:
            self._protocol.close(QuicErrorCode.INTERNAL_ERROR, "aborted")
        await self._close_transport()

    async def vanish(self) -> None:
        """Stop without a word, as a client does whose battery is empty."""
        await self._close_transport()

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close in good order."""
        await self.aclose()

    async def _close_transport(self) -> None:
        transport, self._transport, self._protocol = self._transport, None, None
        if self._pinging is not None:
            self._pinging.cancel()
        if transport is not None:
            transport.close()
            await asyncio.sleep(0)

    def _ping(self) -> None:
        protocol, now = self._protocol, monotonic_s()
        if protocol is not None:
            if protocol.reading and not protocol.heard and self._should_ping(protocol, now):
                protocol.asked_s = now if protocol.asked_s is None else protocol.asked_s
                if now - protocol.asked_s > SILENCE_S:
                    protocol.end(f"nothing came for {SILENCE_S:g} s")
                else:
                    protocol.quic.send_ping(0)
                    protocol.transmit()
            protocol.heard = False
        self._pinging = asyncio.get_running_loop().call_later(PING_PERIOD_S, self._ping)

    def _should_ping(self, protocol: Http3Protocol, now: float) -> bool:
        """Whether somebody waits for this connection, or may want it soon."""
        if protocol.streams:
            self._used_s = self._warmed_s = now
        elif protocol.asked_s is None:
            if now - self._used_s > self._keep_warm_s or now - self._warmed_s < WARM_PING_PERIOD_S:
                return False
            self._warmed_s = now
        return protocol.ended is None

    def _cancel(self, protocol: Http3Protocol, stream_id: int) -> None:
        if protocol.ended is not None or self._transport is None:
            return
        try:
            protocol.quic.stop_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
        except ValueError:
            return  # the stream is already forgotten
        protocol.quic.reset_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
        protocol.transmit()

    async def _chunks(self, stream: _Stream) -> AsyncIterator[bytes]:
        while True:
            while stream.chunks:
                chunk = stream.chunks.popleft()
                stream.unread_bytes -= len(chunk)
                if chunk:
                    yield chunk
            if stream.ended:
                return
            await self._change(stream)

    async def _change(self, stream: _Stream) -> None:
        """Wait until something new is known. Raises `PeerError` when the stream is broken."""
        if stream.broken is None:
            await stream.changed.wait()
            stream.changed.clear()
        if stream.broken is not None and not stream.chunks:
            raise PeerError(f"{self.authority}: {stream.broken}")
