"""What one edge lets its clients take: every bound of the HTTP fronts, in one value.

It is there so that a reader finds all limits in one place, and so that a test can shrink one of
them without touching code.
"""

from dataclasses import dataclass, fields

from firstlight.shared.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class HttpLimits:
    """Bounds on what clients can make the edge hold, keep open or wait for."""

    body_bytes_max: int = 8 * MIB
    """A longer request body is answered 413."""
    header_frame_bytes_max: int = 16 * KIB
    """A longer HEADERS frame closes the connection with H3_EXCESSIVE_LOAD; HTTP/1.1 and 2 answer
    431."""
    field_section_bytes_max: int = 32 * KIB
    """Decoded size, RFC 9114 section 4.2.2 (32 bytes are added a field); more is answered 431."""
    stream_window_bytes: int = 256 * KIB
    """What a client may send on a stream ahead of what the application has read."""
    connection_window_bytes: int = 1 * MIB
    """The same for all streams of a connection together."""
    stream_unacked_bytes_max: int = 128 * KIB
    """Above this much unacknowledged response, `send` waits."""
    connections_max: int = 4096
    connections_per_source_max: int = 512
    """QUIC connections of one IP address."""
    half_open_retry: int = 64
    """From this many unfinished handshakes on, a new client must first prove its address
    (Retry)."""
    half_open_max: int = 1024
    requests_max: int = 2048
    """Requests in work at once over HTTP/3 and TCP each; one more is answered 503."""
    requests_per_connection_max: int = 100
    idle_timeout_s: float = 25.0
    handshake_timeout_s: float = 5.0
    stall_timeout_s: float = 30.0
    """A client that acknowledges nothing of what waits for it for this long is cancelled."""

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a limit that would let nothing through."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ConfigError(f"{field.name} must be above 0, not {value}", param=field.name)
