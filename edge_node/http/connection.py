"""One HTTP/3 connection: from QUIC events to exchanges, and back.

It reads no clock and owns no socket: the server hands it datagrams and the time, and asks it for
datagrams and the next deadline. Application tasks are started through a callback.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from aioquic.h3.connection import ErrorCode
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic import events as quic_events
from aioquic.quic.connection import NetworkAddress
from aioquic.quic.packet import QuicErrorCode

from firstlight.edge_node.http.asgi import (
    Fields,
    Refusal,
    build_scope,
    check_request,
    error_answer,
)
from firstlight.edge_node.http.exchange import Exchange, Scope
from firstlight.edge_node.http.h3 import RequestMalformed
from firstlight.edge_node.http.limits import HttpLimits
from firstlight.edge_node.http.quic import EdgeQuicConnection

log = logging.getLogger(__name__)


class Host(Protocol):
    """What a connection needs of the server that holds it."""

    def run_exchange(self, exchange: Exchange, scope: Scope) -> bool:
        """Start the application for a request; False when there is no room."""

    def touched(self, connection: "EdgeConnection") -> None:
        """There is something to send, or a deadline has changed."""

    def cid_issued(self, cid: bytes, connection: "EdgeConnection") -> None:
        """Route a further connection id to this connection."""

    def cid_retired(self, cid: bytes) -> None:
        """Route a connection id no more."""


@dataclass(eq=False)
class EdgeConnection:
    """The live state of one client's connection."""

    quic: EdgeQuicConnection
    host: Host
    limits: HttpLimits
    source: str
    """The first address: limits count on it, for a migrated client too."""
    client: tuple[str, int]
    server: tuple[str, int]
    state: Mapping[str, Any]
    opened_at_s: float
    date: Callable[[], bytes]
    draining: bool = False
    terminated: bool = False
    exchanges: dict[int, Exchange] = field(default_factory=dict)
    _waiting: set[int] = field(default_factory=set)
    _next_stream_id: int = 0

    def receive(self, data: bytes, address: NetworkAddress, now: float) -> None:
        """Take one datagram."""
        self.quic.receive_datagram(data, address, now=now)
        self.process(now)

    def handle_timer(self, now: float) -> None:
        """Do what was due at `quic.get_timer()`."""
        self.quic.handle_timer(now=now)
        self.process(now)

    def process(self, now: float) -> None:
        """Act on everything that QUIC has to say."""
        while (event := self.quic.next_event()) is not None:
            self._on_quic(event, now)
        if self.quic.closing:
            self._disconnect_all("the connection is closed")
        for stream_id in tuple(self._waiting):
            if self.quic.unacked_bytes(stream_id) * 2 <= self.limits.stream_unacked_bytes_max:
                self._waiting.discard(stream_id)
                self.exchanges[stream_id].room()
        if self.draining:
            self.retire()

    def sweep(self, now: float) -> None:
        """End what has taken too long: a handshake, or a stream without acknowledgements."""
        if not self.quic.handshaken and now - self.opened_at_s > self.limits.handshake_timeout_s:
            self.close(QuicErrorCode.CONNECTION_REFUSED, "the handshake took too long")
        self.retire()
        for exchange in tuple(self.exchanges.values()):
            acked = self.quic.acked_bytes(exchange.stream_id)
            if acked != exchange.acked_bytes or not self.quic.unacked_bytes(exchange.stream_id):
                exchange.acked_bytes, exchange.progress_at_s = acked, now
            elif now - exchange.progress_at_s > self.limits.stall_timeout_s:
                log.info("stream %d: no acknowledgement, cancelled", exchange.stream_id)
                self.reset(exchange.stream_id, ErrorCode.H3_REQUEST_CANCELLED)
                exchange.disconnect("the client acknowledged nothing for too long")

    def retire(self) -> None:
        """Forget exchanges that are over on both sides; close a draining connection with none
        left."""
        for stream_id, exchange in tuple(self.exchanges.items()):
            over = exchange.task is None or exchange.task.done()
            if over and self.quic.sending_finished(stream_id):
                del self.exchanges[stream_id]
                self._waiting.discard(stream_id)
        if self.draining and not self.exchanges:
            self.close(ErrorCode.H3_NO_ERROR, "the server is going away")

    def drain(self) -> None:
        """GOAWAY: finish what has begun, refuse what comes, then close."""
        self.draining = True
        if not self.quic.closing:
            self.quic.h3.send_goaway(self._next_stream_id)
        self.host.touched(self)

    def close(self, error_code: int, reason: str) -> None:
        """CONNECTION_CLOSE, once."""
        if self.quic.closing:
            return
        self.quic.close(error_code=error_code, reason_phrase=reason)
        self._disconnect_all(reason)
        self.host.touched(self)

    # What an exchange asks for.

    def send_fields(self, stream_id: int, fields: Fields, *, last: bool) -> None:
        """Send a field section, with `date` when the application gave none."""
        if not any(name == b"date" for name, _ in fields):
            fields = [*fields, (b"date", self.date())]
        self.quic.h3.send_headers(stream_id, fields, end_stream=last)
        self.host.touched(self)

    def send_body(self, stream_id: int, data: bytes, *, last: bool) -> None:
        """Send body bytes; an empty piece that is not the last sends nothing."""
        if data:
            self.quic.h3.send_data(stream_id, data, end_stream=last)
        elif last:
            self.quic.h3.end_stream(stream_id)
        self.host.touched(self)

    def wait_for_room(self, exchange: Exchange) -> None:
        """Call `exchange.room()` when half of its high-water mark is free."""
        self._waiting.add(exchange.stream_id)

    def consumed(self, stream_id: int, size_bytes: int) -> None:
        """Give the client credit for what has been read."""
        self.quic.consumed(stream_id, size_bytes)
        self.host.touched(self)

    def unacked_bytes(self, stream_id: int) -> int:
        """Bytes of the answer that the client has not acknowledged."""
        return self.quic.unacked_bytes(stream_id)

    def stop_request(self, stream_id: int, error_code: int) -> None:
        """Ask the client to send no more of its body."""
        self.quic.h3.refuse(stream_id)
        self.quic.stop(stream_id, error_code)
        self.host.touched(self)

    def reset(self, stream_id: int, error_code: int) -> None:
        """Break the answer off, and the request with it."""
        self.quic.h3.abandon(stream_id)
        self.quic.reset(stream_id, error_code)
        self.quic.stop(stream_id, error_code)
        self.host.touched(self)

    # Events.

    def _on_quic(self, event: quic_events.QuicEvent, now: float) -> None:
        if isinstance(event, quic_events.ConnectionIdIssued):
            self.host.cid_issued(event.connection_id, self)
        elif isinstance(event, quic_events.ConnectionIdRetired):
            self.host.cid_retired(event.connection_id)
        elif isinstance(event, quic_events.ConnectionTerminated):
            self.terminated = True
            self._disconnect_all(f"the connection ended: {event.reason_phrase or event.error_code}")
        for http_event in self.quic.h3.handle_event(event):
            self._on_http(http_event, now)
        if isinstance(event, quic_events.StreamReset | quic_events.StopSendingReceived):
            self._on_cancel(event.stream_id, type(event).__name__)

    def _on_cancel(self, stream_id: int, cause: str) -> None:
        exchange = self.exchanges.get(stream_id)
        if exchange is not None and not exchange.answered:
            # A client that resets its body also gives the answer up, and the other way round.
            exchange.disconnect(f"the client cancelled ({cause})")
            self.reset(stream_id, ErrorCode.H3_REQUEST_CANCELLED)

    def _on_http(self, event: H3Event, now: float) -> None:
        if isinstance(event, HeadersReceived):
            exchange = self.exchanges.get(event.stream_id)
            if exchange is None:
                self._on_request(event, now)
            else:  # trailers: nobody asked for them, but they may end the body
                exchange.body_received(b"", ended=event.stream_ended)
        elif isinstance(event, DataReceived):
            exchange = self.exchanges.get(event.stream_id)
            if exchange is not None:
                self._on_body(exchange, event)
        elif isinstance(event, RequestMalformed):
            exchange = self.exchanges.get(event.stream_id)
            if exchange is None:
                self._refuse(event.stream_id, Refusal(event.status, event.reason))
            else:
                exchange.refuse(event.status, event.reason, malformed=True)

    def _on_body(self, exchange: Exchange, event: DataReceived) -> None:
        size = len(event.data)
        self.quic.waits_for_application(event.stream_id, size)
        if not exchange.body_received(event.data, ended=event.stream_ended):
            self.consumed(event.stream_id, size)

    def _on_request(self, event: HeadersReceived, now: float) -> None:
        stream_id = event.stream_id
        if self.draining and stream_id >= self._next_stream_id:
            self.reset(stream_id, ErrorCode.H3_REQUEST_REJECTED)
            return
        self._next_stream_id = max(self._next_stream_id, stream_id + 4)
        if not self.quic.can_send(stream_id):  # STOP_SENDING overtook the request
            self.reset(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
            return
        head = check_request(event.headers, self.limits.body_bytes_max)
        if isinstance(head, Refusal):
            self._refuse(stream_id, head, ended=event.stream_ended)
            return
        if len(self.exchanges) >= self.limits.requests_per_connection_max:
            self.retire()
        exchange = Exchange(self, stream_id, head, self.limits, now)
        scope = build_scope(head, client=self.client, server=self.server, state=self.state)
        full = len(self.exchanges) >= self.limits.requests_per_connection_max
        if full or not self.host.run_exchange(exchange, scope):
            refusal = Refusal(503, "too many requests are in work", malformed=False)
            self._refuse(stream_id, refusal, ended=event.stream_ended, retry_after_s=1)
            return
        self.exchanges[stream_id] = exchange
        exchange.body_received(b"", ended=event.stream_ended)

    def _refuse(
        self,
        stream_id: int,
        refusal: Refusal,
        *,
        ended: bool = False,
        retry_after_s: int | None = None,
    ) -> None:
        if not self.quic.can_send(stream_id):
            self.reset(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
            return
        fields, body = error_answer(refusal.status, refusal.reason, retry_after_s=retry_after_s)
        self.send_fields(stream_id, fields, last=False)
        self.send_body(stream_id, body, last=True)
        if not ended:
            code = ErrorCode.H3_MESSAGE_ERROR if refusal.malformed else ErrorCode.H3_NO_ERROR
            self.stop_request(stream_id, code)

    def _disconnect_all(self, reason: str) -> None:
        for exchange in self.exchanges.values():
            exchange.disconnect(reason)
        self._waiting.clear()
