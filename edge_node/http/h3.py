"""HTTP/3 framing with the bounds that aioquic leaves to its user.

Plain aioquic buffers a HEADERS frame of any length (and copies it for every packet), lets 16 KB of
QPACK references grow to 64 MB, and ends the whole connection for one malformed request. Here a
HEADERS frame has a cap, QPACK has no dynamic table, decoded fields have a cap, and a malformed
message is the matter of its own stream.
"""

from dataclasses import dataclass

import pylsqpack
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import (
    ErrorCode,
    FrameType,
    H3Connection,
    H3Stream,
    MessageError,
    ProtocolError,
    Setting,
    encode_frame,
)
from aioquic.h3.events import H3Event, Headers
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import QuicEvent, StreamDataReceived, StreamReset

from firstlight.edge_node.http.limits import HttpLimits

CONTROL_FRAME_BYTES_MAX = 4096
_FIELD_OVERHEAD_BYTES = 32  # RFC 9114 section 4.2.2


class ExcessiveLoad(ProtocolError):
    """The peer asks us to hold more than any honest client needs."""

    error_code = ErrorCode.H3_EXCESSIVE_LOAD


class FieldsTooLarge(MessageError):
    """The decoded field section is above what our SETTINGS allow."""


@dataclass
class RequestMalformed(H3Event):
    """A request that breaks HTTP/3. Its stream is in error; the connection lives on."""

    stream_id: int
    status: int
    reason: str


class EdgeH3Connection(H3Connection):
    """The server's side of one HTTP/3 connection."""

    def __init__(self, quic: QuicConnection, limits: HttpLimits) -> None:
        self._limits = limits
        self._refused: set[int] = set()
        super().__init__(quic)

    def handle_event(self, event: QuicEvent) -> list[H3Event]:
        """HTTP events of a QUIC event; data that still comes on a refused stream is dropped."""
        if isinstance(event, StreamDataReceived | StreamReset) and event.stream_id in self._refused:
            if isinstance(event, StreamReset) or event.end_stream:
                self._refused.discard(event.stream_id)
            return []
        return super().handle_event(event)

    def refuse(self, stream_id: int) -> None:
        """Take no more of a request whose body may still be on its way."""
        stream = self._stream.get(stream_id)
        if stream is None:
            return
        if not stream.receiving_ended:
            self._refused.add(stream_id)
        stream.buffer = b""
        stream.receiving_ended = True
        if stream.is_ended():
            self._stream.pop(stream_id)

    def abandon(self, stream_id: int) -> None:
        """Neither take nor send more on a stream, which QUIC resets."""
        stream = self._stream.get(stream_id)
        if stream is not None:
            stream.sending_ended = True
            self.refuse(stream_id)

    def end_stream(self, stream_id: int) -> None:
        """End an answer whose last message is empty, without an empty DATA frame before the end."""
        with self._get_or_create_stream(stream_id) as stream:
            stream.finish_sending()
        self._quic.send_stream_data(stream_id, b"", end_stream=True)

    def send_goaway(self, stream_id: int) -> None:
        """Say that requests from `stream_id` on will not be served (RFC 9114 section 5.2)."""
        assert self._local_control_stream_id is not None
        frame = encode_frame(FrameType.GOAWAY, encode_uint_var(stream_id))
        self._quic.send_stream_data(self._local_control_stream_id, frame)

    def _init_connection(self) -> None:
        self._max_table_capacity = 0
        self._blocked_streams = 0
        self._decoder = pylsqpack.Decoder(0, 0)
        super()._init_connection()

    def _get_local_settings(self) -> dict[int, int]:
        settings = super()._get_local_settings()
        settings.pop(Setting.ENABLE_CONNECT_PROTOCOL, None)
        settings[Setting.MAX_FIELD_SECTION_SIZE] = self._limits.field_section_bytes_max
        return settings

    def _check_request_or_push_frame_type(self, frame_type: int, stream: H3Stream) -> None:
        super()._check_request_or_push_frame_type(frame_type, stream)
        cap = self._limits.header_frame_bytes_max
        if frame_type == FrameType.HEADERS and (stream.frame_size or 0) > cap:
            raise ExcessiveLoad(f"HEADERS frame of {stream.frame_size} bytes, at most {cap}")

    def _check_control_frame_type(self, frame_type: int) -> None:
        super()._check_control_frame_type(frame_type)
        assert self._peer_control_stream_id is not None
        stream = self._stream.get(self._peer_control_stream_id)
        buffered = frame_type in (FrameType.SETTINGS, FrameType.MAX_PUSH_ID)
        if buffered and stream is not None and (stream.frame_size or 0) > CONTROL_FRAME_BYTES_MAX:
            raise ExcessiveLoad(f"control frame of {stream.frame_size} bytes")

    def _decode_headers(self, stream_id: int, frame_data: bytes | None) -> Headers:
        fields = super()._decode_headers(stream_id, frame_data)
        size = sum(len(name) + len(value) + _FIELD_OVERHEAD_BYTES for name, value in fields)
        if size > self._limits.field_section_bytes_max:
            raise FieldsTooLarge(
                f"fields of {size} bytes, at most {self._limits.field_section_bytes_max}"
            )
        return fields

    def _receive_request_or_push_data(
        self, stream: H3Stream, data: bytes, stream_ended: bool
    ) -> list[H3Event]:
        try:
            return super()._receive_request_or_push_data(stream, data, stream_ended)
        except MessageError as error:
            self.refuse(stream.stream_id)
            if stream_ended:
                self._refused.discard(stream.stream_id)
            status = 431 if isinstance(error, FieldsTooLarge) else 400
            return [RequestMalformed(stream.stream_id, status, error.reason_phrase)]
