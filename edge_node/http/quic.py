"""QUIC with windows that follow what the application reads, and reset tokens that outlive a
restart.

Plain aioquic doubles its receive windows as soon as half of one has arrived, so a client can fill
the memory of a server whose application does not read. Here a window moves only when data is
consumed. The count is kept at the level of QUIC: all bytes delivered in order, less those that wait
for the application. Counting body bytes alone would leak the credit of frame headers and end in a
deadlock.
"""

import hashlib
import hmac

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from aioquic.tls import Epoch

from firstlight.edge_node.http.h3 import EdgeH3Connection
from firstlight.edge_node.http.limits import HttpLimits

RESET_TOKEN_BYTES = 16
_PEER_IDS_MAX = 2  # one in use, and one for when the client's address changes
_UNI_STREAMS_MAX = 16  # control, two of QPACK, and room for those that a client greases with


def reset_token(key: bytes, connection_id: bytes) -> bytes:
    """The stateless reset token of a connection id (RFC 9000 section 10.3.2)."""
    return hmac.digest(key, connection_id, hashlib.sha256)[:RESET_TOKEN_BYTES]


class EdgeQuicConnection(QuicConnection):
    """The server's side of one QUIC connection. What does not depend on the client is made before
    there is one."""

    def __init__(
        self,
        *,
        configuration: QuicConfiguration,
        limits: HttpLimits,
        reset_key: bytes,
    ) -> None:
        super().__init__(configuration=configuration, original_destination_connection_id=b"")
        self._reset_key = reset_key
        self._stream_window_bytes = limits.stream_window_bytes
        self._connection_window_bytes = limits.connection_window_bytes
        self._waiting_bytes: dict[int, int] = {}
        for limit, value in (
            (self._local_max_streams_bidi, limits.requests_per_connection_max),
            (self._local_max_streams_uni, _UNI_STREAMS_MAX),
        ):
            limit.value = limit.sent = value
        self._host_cids[0].stateless_reset_token = reset_token(reset_key, self.host_cid)
        self._local_active_connection_id_limit = _PEER_IDS_MAX
        (self._version,) = configuration.supported_versions
        super()._initialize(b"")
        self.h3 = EdgeH3Connection(self, limits)
        """No other protocol is offered, so what it sends first waits for the keys."""

    def meet(self, original_cid: bytes, retry_cid: bytes | None = None) -> None:
        """Be the connection of a client: with the id that its first packet of all was for, and with
        ours if that was answered with Retry."""
        self._original_destination_connection_id = original_cid
        self._retry_source_connection_id = retry_cid
        self._logger.extra = {"id": original_cid.hex()}

    def _initialize(self, peer_cid: bytes) -> None:
        """What depends on the client's first packet; all else was made before it came."""
        assert self._version is not None
        self._cryptos[Epoch.INITIAL].setup_initial(peer_cid, False, self._version)
        ((kind, _),) = self.tls.handshake_extensions
        self.tls.handshake_extensions = [(kind, self._serialize_transport_parameters())]

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        super()._parse_transport_parameters(data, from_session_ticket)
        # aioquic does so after the handshake; SETTINGS are to be sent as soon as there are keys for
        # them (RFC 9114 section 7.2.4.2).
        self._unblock_streams(is_unidirectional=True)

    @property
    def handshaken(self) -> bool:
        """Whether the handshake is complete, so that the peer's address is proven."""
        return self._handshake_complete

    @property
    def closing(self) -> bool:
        """Whether either side has closed. `ConnectionTerminated` comes only three PTO later."""
        return self._close_event is not None

    @property
    def addressed(self) -> bool:
        """Whether a packet has been accepted, so that there is somewhere to send."""
        return bool(self._network_paths)

    def waits_for_application(self, stream_id: int, size_bytes: int) -> None:
        """Note that delivered bytes are held in a queue until the application reads."""
        self._waiting_bytes[stream_id] = self._waiting_bytes.get(stream_id, 0) + size_bytes

    def consumed(self, stream_id: int, size_bytes: int) -> None:
        """Note that the application has taken (or will never take) bytes that waited."""
        left = self._waiting_bytes.get(stream_id, 0) - size_bytes
        assert left >= 0, f"stream {stream_id} consumed {-left} bytes more than waited"
        if left:
            self._waiting_bytes[stream_id] = left
        else:
            self._waiting_bytes.pop(stream_id, None)

    def unacked_bytes(self, stream_id: int) -> int:
        """Bytes given to `send_stream_data` that the peer has not acknowledged in order."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        return stream.sender._buffer_stop - stream.sender._buffer_start

    def acked_bytes(self, stream_id: int) -> int:
        """How much of a stream the peer has acknowledged in order."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else stream.sender._buffer_start

    def sending_finished(self, stream_id: int) -> bool:
        """Whether the peer has acknowledged all of a stream, its end included."""
        stream = self._streams.get(stream_id)
        return stream is None or stream.sender.is_finished

    def can_send(self, stream_id: int) -> bool:
        """Whether the peer still takes what is sent on a stream."""
        stream = self._streams.get(stream_id)
        return (
            stream is not None
            and not stream.sender.is_finished
            and stream.sender._reset_error_code is None
        )

    def stop(self, stream_id: int, error_code: int) -> None:
        """STOP_SENDING, if there is still something to stop."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.receiver.is_finished:
            self.stop_stream(stream_id, error_code)

    def reset(self, stream_id: int, error_code: int) -> None:
        """RESET_STREAM, if there is still something to reset."""
        if stream_id in self._streams:
            self.reset_stream(stream_id, error_code)

    def _replenish_connection_ids(self) -> None:
        super()._replenish_connection_ids()
        for connection_id in self._host_cids:
            if not connection_id.was_sent:
                connection_id.stateless_reset_token = reset_token(
                    self._reset_key, connection_id.cid
                )

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        limit = self._local_max_data
        if (limit.value - limit.used) * 2 < self._connection_window_bytes:
            unread = sum(self._waiting_bytes.values()) + sum(
                stream.receiver.highest_offset - stream.receiver.starting_offset()
                for stream in self._streams.values()
                if not stream.receiver.is_finished
            )
            limit.value = max(limit.value, limit.used - unread + self._connection_window_bytes)
        used, limit.used = limit.used, 0  # aioquic doubles the value when `used` is above half
        try:
            super()._write_connection_limits(builder, space)
        finally:
            limit.used = used

    def _write_stream_limits(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream
    ) -> None:
        receiver = stream.receiver
        if receiver.is_finished or not stream.max_stream_data_local:
            return
        if (stream.max_stream_data_local - receiver.highest_offset) * 2 < self._stream_window_bytes:
            assert stream.stream_id is not None
            read = receiver.starting_offset() - self._waiting_bytes.get(stream.stream_id, 0)
            stream.max_stream_data_local = max(
                stream.max_stream_data_local, read + self._stream_window_bytes
            )
        if stream.max_stream_data_local_sent != stream.max_stream_data_local:
            highest, receiver.highest_offset = receiver.highest_offset, 0  # same doubling
            try:
                super()._write_stream_limits(builder, space, stream)
            finally:
                receiver.highest_offset = highest
