"""The UDP endpoint: the one file of the HTTP/3 front that owns a socket, a timer and tasks.

Its own class instead of aioquic's server: it needs caps, Retry only under pressure, stateless
resets, a drain, and above all one transmit a turn of the loop for everything that a turn received
and sent (aioquic transmits for every datagram and every write, at three to four times the cost).
"""

import asyncio
import hashlib
import logging
import os
import socket
from collections import Counter
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Any

from aioquic._buffer import Buffer
from aioquic.h3.connection import H3_ALPN
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicHeader,
    QuicPacketType,
    QuicProtocolVersion,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.retry import QuicRetryTokenHandler

from firstlight.edge_node.http.connection import EdgeConnection
from firstlight.edge_node.http.exchange import AsgiApp, Exchange, Scope
from firstlight.edge_node.http.limits import MIB, HttpLimits
from firstlight.edge_node.http.quic import RESET_TOKEN_BYTES, EdgeQuicConnection, reset_token
from firstlight.shared.clock import monotonic_s, unix_s
from firstlight.shared.errors import ConfigError

CONNECTION_ID_BYTES = 8
RECEIVE_BUFFER_BYTES = 4 * MIB
RESETS_PER_SECOND_MAX = 100
READY_AGAIN_S = 0.05
"""A connection for the next client is prepared so long after one was needed: not while that one's
handshake waits."""
_RESET_BYTES = 42
_RESET_BYTES_MIN = 5 + RESET_TOKEN_BYTES  # RFC 9000 section 10.3

log = logging.getLogger(__name__)


def quic_configuration(cert_file: Path, key_file: Path, limits: HttpLimits) -> QuicConfiguration:
    """What QUIC is configured with. Raises `ConfigError` when the files do not serve."""
    configuration = QuicConfiguration(
        alpn_protocols=H3_ALPN,
        is_client=False,
        supported_versions=[QuicProtocolVersion.VERSION_1],
        congestion_control_algorithm="cubic",
        connection_id_length=CONNECTION_ID_BYTES,
        idle_timeout=limits.idle_timeout_s,
        max_data=limits.connection_window_bytes,
        max_stream_data=limits.stream_window_bytes,
    )
    try:
        configuration.load_cert_chain(str(cert_file), str(key_file))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot use {cert_file} with key {key_file}: {error}") from error
    return configuration


class Http3Server(asyncio.DatagramProtocol):
    """Serves an ASGI application over HTTP/3 on one UDP socket."""

    def __init__(
        self,
        app: AsgiApp,
        *,
        cert_file: Path,
        key_file: Path,
        limits: HttpLimits,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._app = app
        self._limits = limits
        self._state = {} if state is None else state
        self._configuration = quic_configuration(cert_file, key_file, limits)
        # From the private key, so that a restarted server can still reset its clients' connections.
        self._reset_key = hashlib.sha256(b"stateless reset\0" + key_file.read_bytes()).digest()
        self._connections: dict[bytes, EdgeConnection] = {}
        self._live: dict[EdgeConnection, set[bytes]] = {}
        self._sources: Counter[str] = Counter()
        self._half_open: set[EdgeConnection] = set()
        self._timers: dict[EdgeConnection, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._touched: dict[EdgeConnection, None] = {}
        self._flush_handle: asyncio.Handle | None = None
        self._sweep_handle: asyncio.TimerHandle | None = None
        self._ready: EdgeQuicConnection | None = self._unmet()
        """For the next client, which waits less."""
        self._ready_handle: asyncio.TimerHandle | None = None
        self._retry = QuicRetryTokenHandler()
        self._resets_left = RESETS_PER_SECOND_MAX
        self._resets_at_s = 0.0
        self._date = (0, b"")
        self._draining = False
        self._transport: asyncio.DatagramTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._address: tuple[str, int] = ("", 0)

    async def start(self, sock: socket.socket) -> None:
        """Serve on a bound UDP socket, which is ours from now on."""
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self._address = sock.getsockname()[:2]
        transport, _ = await self._loop.create_datagram_endpoint(lambda: self, sock=sock)
        self._transport = transport
        self._sweep()

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._live)

    @property
    def requests(self) -> int:
        """Requests whose application runs now."""
        return len(self._tasks)

    async def drain(self, grace_s: float) -> None:
        """Refuse new connections and requests, let running ones finish, then close. Bounded in
        time."""
        self._draining = True
        for connection in tuple(self._live):
            connection.drain()
        deadline_s = monotonic_s() + grace_s
        while any(not c.quic.closing for c in self._live) and monotonic_s() < deadline_s:
            for connection in tuple(self._live):
                connection.retire()
            await asyncio.sleep(min(0.02, grace_s))
        await self._cancel_tasks()
        self._flush()

    async def stop(self) -> None:
        """Close every connection now and give the socket back."""
        self._draining = True
        for connection in tuple(self._live):
            connection.close(QuicErrorCode.NO_ERROR, "the server stops")
        await self._cancel_tasks()
        self._flush()
        handles = (self._flush_handle, self._sweep_handle, self._ready_handle)
        for handle in (*handles, *self._timers.values()):
            if handle is not None:
                handle.cancel()
        for connection in tuple(self._live):
            self._forget(connection)
        if self._transport is not None:
            self._transport.close()
            await asyncio.sleep(0)

    async def _cancel_tasks(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    # asyncio.DatagramProtocol

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        """One datagram from the network; bad ones are dropped."""
        assert isinstance(data, bytes)
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=CONNECTION_ID_BYTES)
        except ValueError:
            return
        connection = self._connections.get(header.destination_cid)
        now = monotonic_s()
        if connection is None:
            connection = self._unknown(header, data, addr, now)
            if connection is None:
                return
        try:
            connection.receive(data, addr, now)
        except Exception:
            log.exception("a datagram broke a connection, which is closed")
            connection.close(QuicErrorCode.INTERNAL_ERROR, "")
        self._touched[connection] = None
        if self._flush_handle is None:
            # A turn later: what a request sets off goes first, and often answers with the packet.
            self._flush_handle = self._loop.call_soon(self._flush_next)

    def error_received(self, exc: Exception) -> None:
        """ICMP errors say nothing that the loss recovery does not see as well."""
        log.debug("UDP: %r", exc)

    # What a connection asks for.

    def run_exchange(self, exchange: Exchange, scope: Scope) -> bool:
        """Start the application for a request; False when there is no room."""
        if len(self._tasks) >= self._limits.requests_max:
            return False
        task = self._loop.create_task(exchange.run(self._app, scope))
        exchange.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def touched(self, connection: EdgeConnection) -> None:
        """Transmit for this connection once, at the end of this turn of the loop."""
        self._touched[connection] = None
        if self._flush_handle is None:
            self._flush_handle = self._loop.call_soon(self._flush)

    def cid_issued(self, cid: bytes, connection: EdgeConnection) -> None:
        """Route a further connection id."""
        if connection in self._live:
            self._connections[cid] = connection
            self._live[connection].add(cid)

    def cid_retired(self, cid: bytes) -> None:
        """Route a connection id no more."""
        connection = self._connections.pop(cid, None)
        if connection is not None:
            self._live[connection].discard(cid)

    # New connections.

    def _unknown(
        self, header: QuicHeader, data: bytes, address: Any, now: float
    ) -> EdgeConnection | None:
        if header.packet_type == QuicPacketType.ONE_RTT:
            self._send_reset(header.destination_cid, len(data), address, now)
            return None
        if len(data) < SMALLEST_MAX_DATAGRAM_SIZE or header.version is None:
            return None
        if header.version not in self._configuration.supported_versions:
            if header.packet_type != QuicPacketType.VERSION_NEGOTIATION:
                answer = encode_quic_version_negotiation(
                    source_cid=header.destination_cid,
                    destination_cid=header.source_cid,
                    supported_versions=self._configuration.supported_versions,
                )
                self._sendto(answer, address)
            return None
        if header.packet_type != QuicPacketType.INITIAL or not self._has_room(address[0]):
            return None
        original_cid: bytes = header.destination_cid
        retry_cid: bytes | None = None
        if header.token or len(self._half_open) >= self._limits.half_open_retry:
            proven = self._proven(header, address, now)
            if proven is None:
                return None
            original_cid, retry_cid = proven, header.destination_cid
        return self._open(header.destination_cid, original_cid, retry_cid, address, now)

    def _has_room(self, source: str) -> bool:
        return (
            not self._draining
            and len(self._live) < self._limits.connections_max
            and len(self._half_open) < self._limits.half_open_max
            and self._sources[source] < self._limits.connections_per_source_max
        )

    def _proven(self, header: QuicHeader, address: Any, now: float) -> bytes | None:
        """The original connection id of a client that has proven its address; else send Retry."""
        if header.token:
            try:
                return self._retry.validate_token(
                    address=address,
                    destination_cid=header.destination_cid,
                    token=header.token,
                    now=now,
                )
            except ValueError:
                return None
        source_cid = os.urandom(CONNECTION_ID_BYTES)
        token = self._retry.create_token(
            address=address,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=source_cid,
            now=now,
        )
        assert header.version is not None
        answer = encode_quic_retry(
            version=header.version,
            source_cid=source_cid,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )
        self._sendto(answer, address)
        return None

    def _open(
        self, cid: bytes, original_cid: bytes, retry_cid: bytes | None, address: Any, now: float
    ) -> EdgeConnection:
        quic, self._ready = self._ready or self._unmet(), None
        quic.meet(original_cid, retry_cid)
        if self._ready_handle is None:
            self._ready_handle = self._loop.call_later(READY_AGAIN_S, self._make_ready)
        connection = EdgeConnection(
            quic=quic,
            host=self,
            limits=self._limits,
            source=address[0],
            client=(address[0], address[1]),
            server=self._address,
            state=self._state,
            opened_at_s=now,
            date=self._http_date,
        )
        self._live[connection] = set()
        self._half_open.add(connection)
        self._sources[connection.source] += 1
        self.cid_issued(cid, connection)
        self.cid_issued(quic.host_cid, connection)
        return connection

    def _unmet(self) -> EdgeQuicConnection:
        return EdgeQuicConnection(
            configuration=self._configuration, limits=self._limits, reset_key=self._reset_key
        )

    def _make_ready(self) -> None:
        self._ready_handle = None
        self._ready = self._ready or self._unmet()

    def _send_reset(self, cid: bytes, size_bytes: int, address: Any, now: float) -> None:
        """Tell a client of an earlier life of this server that its connection is no more."""
        if now - self._resets_at_s >= 1.0:
            self._resets_left, self._resets_at_s = RESETS_PER_SECOND_MAX, now
        size = min(size_bytes - 1, _RESET_BYTES)  # shorter than its cause, so that no loop can form
        if size < _RESET_BYTES_MIN or self._resets_left == 0:
            return
        self._resets_left -= 1
        noise = bytearray(os.urandom(size - RESET_TOKEN_BYTES))
        noise[0] = noise[0] & 0x3F | 0x40
        self._sendto(bytes(noise) + reset_token(self._reset_key, cid), address)

    # Sending and time.

    def _sendto(self, data: bytes, address: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data, address)

    def _flush_next(self) -> None:
        self._flush_handle = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what is due on every connection that this turn touched."""
        self._flush_handle = None
        touched, self._touched = self._touched, {}
        for connection in touched:
            if connection not in self._live:
                continue
            if connection.terminated or not connection.quic.addressed:
                self._forget(connection)
                continue
            now = monotonic_s()
            for data, address in connection.quic.datagrams_to_send(now=now):
                self._sendto(data, address)
            connection.process(now)  # sending issues connection ids
            if connection.quic.handshaken:
                self._half_open.discard(connection)
            self._arm(connection, now)

    def _arm(self, connection: EdgeConnection, now: float) -> None:
        """Make sure that a timer fires by the deadline; an earlier one re-arms itself."""
        due_s = connection.quic.get_timer()
        if due_s is None:
            return
        armed = self._timers.get(connection)
        delay_s = max(0.0, due_s - now)
        if armed is not None:
            if armed.when() <= self._loop.time() + delay_s:
                return
            armed.cancel()
        self._timers[connection] = self._loop.call_later(delay_s, self._due, connection)

    def _due(self, connection: EdgeConnection) -> None:
        self._timers.pop(connection, None)
        now = monotonic_s()
        due_s = connection.quic.get_timer()
        if due_s is not None and due_s <= now + 0.0005:
            connection.handle_timer(max(now, due_s))
            self.touched(connection)
        elif due_s is not None:
            self._arm(connection, now)

    def _sweep(self) -> None:
        period_s = min(1.0, self._limits.stall_timeout_s / 4)
        self._sweep_handle = self._loop.call_later(period_s, self._sweep)
        now = monotonic_s()
        for connection in tuple(self._live):
            connection.sweep(now)

    def _forget(self, connection: EdgeConnection) -> None:
        for cid in self._live.pop(connection):
            self._connections.pop(cid, None)
        self._half_open.discard(connection)
        self._sources[connection.source] -= 1
        if self._sources[connection.source] <= 0:
            del self._sources[connection.source]
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _http_date(self) -> bytes:
        second = int(unix_s())
        if second != self._date[0]:
            self._date = (second, formatdate(second, usegmt=True).encode())
        return self._date[1]
