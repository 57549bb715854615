"""A client and a server of QUIC joined in memory, with a clock of their own."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import H3_ALPN, FrameType, H3Connection, encode_frame
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from asgi_app import App
from edge_tls import TlsFiles

from firstlight.edge_node.http.connection import EdgeConnection
from firstlight.edge_node.http.exchange import AsgiApp, Exchange, Scope
from firstlight.edge_node.http.limits import HttpLimits
from firstlight.edge_node.http.quic import EdgeQuicConnection
from firstlight.edge_node.http.server import quic_configuration

CLIENT, SERVER = ("10.0.0.1", 1000), ("10.0.0.2", 443)
RESET_KEY = b"k" * 32
Fields = list[tuple[bytes, bytes]]


class Pair:
    """What the client learns is in `answers`, `bodies`, `resets`, `stops` and `closed`."""

    def __init__(self, tls: TlsFiles, app: AsgiApp, limits: HttpLimits, rounds: int = 60) -> None:
        self.now = 100.0
        self.app = app
        self.tasks: list[asyncio.Task[None]] = []
        self.answers: dict[int, dict[bytes, bytes]] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.stops: dict[int, int] = {}
        self.closed: events.ConnectionTerminated | None = None
        configuration = QuicConfiguration(alpn_protocols=H3_ALPN, server_name="localhost")
        configuration.load_verify_locations(str(tls.ca))
        self.client = QuicConnection(configuration=configuration)
        self.h3: H3Connection | None = None
        quic = EdgeQuicConnection(
            configuration=quic_configuration(tls.cert, tls.key, limits),
            limits=limits,
            reset_key=RESET_KEY,
        )
        quic.meet(self.client.original_destination_connection_id)
        self.edge = EdgeConnection(
            quic=quic,
            host=self,
            limits=limits,
            source=CLIENT[0],
            client=CLIENT,
            server=SERVER,
            state={"from": "lifespan"},
            opened_at_s=self.now,
            date=lambda: b"Mon, 01 Jan 2024 00:00:00 GMT",
        )
        self.client.connect(SERVER, now=self.now)
        self.turn(rounds)

    # The server's host.

    def run_exchange(self, exchange: Exchange, scope: Scope) -> bool:
        exchange.task = asyncio.ensure_future(exchange.run(self.app, scope))
        self.tasks.append(exchange.task)
        return True

    def touched(self, connection: EdgeConnection) -> None:
        assert connection is self.edge

    def cid_issued(self, cid: bytes, connection: EdgeConnection) -> None:
        assert connection is self.edge

    def cid_retired(self, cid: bytes) -> None:
        assert cid

    async def cancel_tasks(self) -> None:
        """Cancel every exchange and wait for its end."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    # The network.

    def turn(self, rounds: int = 60, *, deliver_to_client: bool = True) -> None:
        """Carry datagrams to and fro, a millisecond a round, until nobody has more to say."""
        for _ in range(rounds):
            self.now += 0.001
            quiet = True
            for data, _ in self.client.datagrams_to_send(now=self.now):
                self.edge.receive(data, CLIENT, self.now)
                quiet = False
            if self.edge.quic.addressed:
                for data, _ in self.edge.quic.datagrams_to_send(now=self.now):
                    if deliver_to_client:
                        self.client.receive_datagram(data, SERVER, now=self.now)
                    quiet = False
            self.edge.process(self.now)
            self._client_events()
            if quiet and _ > 2:
                break
            for side, handle in (
                (self.client, self.client.handle_timer),
                (self.edge.quic, self.edge.handle_timer),
            ):
                due = side.get_timer()
                if due is not None and due <= self.now:
                    handle(now=self.now)

    async def settle(self, rounds: int = 3) -> None:
        """Let applications and network run in turn."""
        for _ in range(rounds):
            self.turn()
            for _ in range(5):
                await asyncio.sleep(0)
        self.turn()

    def _client_events(self) -> None:
        while (event := self.client.next_event()) is not None:
            if isinstance(event, events.ProtocolNegotiated):
                self.h3 = H3Connection(self.client)
            elif isinstance(event, events.StreamReset):
                self.resets[event.stream_id] = event.error_code
            elif isinstance(event, events.StopSendingReceived):
                self.stops[event.stream_id] = event.error_code
            elif isinstance(event, events.ConnectionTerminated):
                self.closed = event
            if self.h3 is not None:
                for http_event in self.h3.handle_event(event):
                    self._http_event(http_event)
        if self.client._close_event is not None:
            self.closed = self.client._close_event

    def _http_event(self, event: H3Event) -> None:
        if isinstance(event, HeadersReceived):
            self.answers[event.stream_id] = dict(event.headers)
            self.bodies.setdefault(event.stream_id, b"")
            if event.stream_ended:
                self.ended.add(event.stream_id)
        elif isinstance(event, DataReceived):
            self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
            if event.stream_ended:
                self.ended.add(event.stream_id)

    # What a client does.

    def stream_id(self) -> int:
        return self.client.get_next_available_stream_id()

    def send_fields(self, fields: Fields, *, end: bool = True) -> int:
        """A field section as given, past all checks of the client."""
        assert self.h3 is not None
        stream_id = self.stream_id()
        frame = encode_frame(FrameType.HEADERS, self.h3._encode_headers(stream_id, fields))
        self.client.send_stream_data(stream_id, frame, end_stream=end)
        return stream_id

    def request(self, path: str = "/", extra: Fields | None = None, *, end: bool = True) -> int:
        method = b"GET" if end else b"POST"
        return self.send_fields(
            [
                (b":method", method),
                (b":scheme", b"https"),
                (b":authority", b"localhost"),
                (b":path", path.encode()),
                *(extra or []),
            ],
            end=end,
        )

    def send_body(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        frame = encode_uint_var(FrameType.DATA) + encode_uint_var(len(data)) + data
        self.client.send_stream_data(stream_id, frame, end_stream=end)


@pytest.fixture
def join(tls: TlsFiles) -> Callable[..., Pair]:
    """`join(app, **limits)` gives a connected pair, or with `rounds=0` one that has not begun. Use
    it within a running loop."""

    def joined(app: AsgiApp, rounds: int = 60, **limits: Any) -> Pair:
        return Pair(tls, app, HttpLimits(**limits), rounds)

    return joined


@pytest.fixture
async def app() -> App:
    return App()


@pytest.fixture
async def pair(join: Callable[..., Any], app: App) -> Any:
    pair = join(app)
    yield pair
    await pair.cancel_tasks()
