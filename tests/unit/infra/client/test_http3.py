"""What a client of HTTP/3 does when it cannot connect, or is told what is no answer."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from aioquic._buffer import Buffer
from aioquic.asyncio import serve
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, FrameType, H3Connection, encode_frame
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamDataReceived
from aioquic.quic.packet import QuicPacketType, pull_quic_header
from edge_tls import TlsFiles
from pylsqpack import Encoder

from firstlight.infra.client.http3 import ClientQuic, Http3Client, _handshake_bytes
from firstlight.shared.errors import PeerError


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Of somebody who takes datagrams, and answers none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def test_a_handshake_that_was_broken_off_is_no_connection(silent_port: int) -> None:
    async with Http3Client("127.0.0.1", silent_port, connect_timeout_s=0.3) as client:
        first = asyncio.create_task(client.connect())
        await asyncio.sleep(0.05)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(PeerError, match="did not answer over HTTP/3"):
            await client.request("GET", "/")


def test_a_handshake_that_was_prepared_long_ago_begins_when_it_is_sent() -> None:
    quic = Http3Client("127.0.0.1", 443)._ready
    assert quic is not None
    quic.connect(("127.0.0.1", 443), now=5_000.0)
    ((datagram, address),) = quic.datagrams_to_send(now=5_000.0)
    assert (len(datagram), address) == (1_200, ("127.0.0.1", 443))
    timer = quic.get_timer()
    assert timer is not None
    assert 5_000.0 < timer < 5_002.0
    quic.handle_timer(now=5_000.5)
    assert quic.next_event() is None, "it waits for an answer"
    quic.handle_timer(now=5_031.0)
    assert isinstance(quic.next_event(), ConnectionTerminated), "not for ever"


async def test_an_address_that_no_socket_takes_is_an_error_of_the_peer() -> None:
    async with Http3Client("255.255.255.255", 443) as client:
        with pytest.raises(PeerError, match=r"255\.255\.255\.255:443"):
            await client.connect()


async def test_who_waits_for_one_connection_shares_its_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    async def nobody_answers(client: Http3Client) -> None:
        tried.append(1)
        await asyncio.sleep(0)
        raise PeerError("nobody answers")

    monkeypatch.setattr(Http3Client, "_connect", nobody_answers)
    client = Http3Client("127.0.0.1", 1)
    failed = await asyncio.gather(*(client.connect() for _ in range(5)), return_exceptions=True)
    assert [str(one) for one in failed] == ["nobody answers"] * 5
    assert len(tried) == 1
    with pytest.raises(PeerError):
        await client.connect()
    assert len(tried) == 2, "who comes later tries again"


class Answering(QuicConnectionProtocol):
    """A server that ends each request with the same bytes."""

    answer: ClassVar[bytes] = b""
    _h3: H3Connection | None = None

    def quic_event_received(self, event: QuicEvent) -> None:
        self._h3 = self._h3 or H3Connection(self._quic)
        if isinstance(event, StreamDataReceived) and event.end_stream and event.stream_id % 4 == 0:
            self._quic.send_stream_data(event.stream_id, self.answer, end_stream=True)
            self.transmit()


@asynccontextmanager
async def client_told(answer: bytes, files: TlsFiles) -> AsyncIterator[Http3Client]:
    """A client of a server that answers each request so."""
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN)
    configuration.load_cert_chain(files.cert, files.key)
    told = type("Told", (Answering,), {"answer": answer})
    server = await serve("127.0.0.1", 0, configuration=configuration, create_protocol=told)
    port = server._transport.get_extra_info("sockname")[1]
    try:
        async with Http3Client("127.0.0.1", port, ca_file=files.ca) as client:
            yield client
    finally:
        server.close()


def headers(*fields: tuple[bytes, bytes]) -> bytes:
    """A HEADERS frame, as it comes over the wire."""
    return encode_frame(FrameType.HEADERS, Encoder().encode(0, list(fields))[1])


@pytest.mark.parametrize("answer", [b"", encode_frame(0x21, b"")], ids=["nothing", "unknown"])
async def test_a_stream_that_ends_without_an_answer_is_an_error(
    answer: bytes, tls: TlsFiles
) -> None:
    async with client_told(answer, tls) as client, asyncio.timeout(5):
        with pytest.raises(PeerError, match="ended without an answer"):
            await client.request("GET", "/")


async def test_an_answer_that_breaks_rules_at_length_is_an_error(tls: TlsFiles) -> None:
    answer = headers((b":status", b"9" * 3000))
    async with client_told(answer, tls) as client, asyncio.timeout(5):
        with pytest.raises(PeerError, match="invalid value b'999"):
            await client.request("GET", "/")


async def test_a_name_that_can_be_none_is_an_error_of_the_peer() -> None:
    async with Http3Client("a..b", 443) as client:
        with pytest.raises(PeerError, match=r"a\.\.b:443"):
            await client.connect()


def in_memory(files: TlsFiles) -> tuple[ClientQuic, QuicConnection, bytes]:
    """A client, a server that has heard it, and what the server answers first."""
    quic = Http3Client("127.0.0.1", 443, ca_file=files.ca)._ready
    assert quic is not None
    quic.connect(("127.0.0.1", 443), now=1.0)
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN)
    configuration.load_cert_chain(files.cert, files.key)
    server = QuicConnection(
        configuration=configuration,
        original_destination_connection_id=quic.original_destination_connection_id,
    )
    for datagram, _ in quic.datagrams_to_send(now=1.0):
        server.receive_datagram(datagram, ("127.0.0.1", 1), now=1.0)
    server.send_stream_data(3, b"hello")
    server._unblock_streams(is_unidirectional=True)
    ((flight, _),) = server.datagrams_to_send(now=1.0)
    return quic, server, flight


def test_a_handshake_ends_without_a_word_in_the_keys_of_its_beginning(tls: TlsFiles) -> None:
    quic, server, flight = in_memory(tls)
    quic.receive_datagram(flight, ("127.0.0.1", 443), now=1.0)
    ((datagram, _),) = quic.datagrams_to_send(now=1.0)
    header = pull_quic_header(Buffer(data=datagram), host_cid_length=8)
    assert header.packet_type is QuicPacketType.HANDSHAKE
    server.receive_datagram(datagram, ("127.0.0.1", 1), now=1.0)
    assert server._handshake_complete


def test_what_follows_a_handshake_in_a_datagram_can_be_taken_later(tls: TlsFiles) -> None:
    quic, _, flight = in_memory(tls)
    end = _handshake_bytes(flight)
    quic.receive_datagram(flight[:end], ("127.0.0.1", 443), now=1.0)
    assert quic._handshake_complete
    assert not [one for one in quic._events if isinstance(one, StreamDataReceived)]
    quic.receive_datagram(flight[end:], ("127.0.0.1", 443), now=1.0)
    (data,) = [one.data for one in quic._events if isinstance(one, StreamDataReceived)]
    assert data == b"hello"


@pytest.mark.parametrize("rest", [b"", bytes(40), b"\x40" + bytes(30), b"\xc0garbage", b"\xc0"])
def test_a_datagram_is_cut_where_its_handshake_ends(rest: bytes, tls: TlsFiles) -> None:
    _, _, flight = in_memory(tls)
    handshake = flight[: _handshake_bytes(flight)]
    assert 500 < len(handshake) < len(flight)
    assert _handshake_bytes(handshake + rest) == len(handshake)


@pytest.mark.parametrize("datagram", [b"\x40" + bytes(30), b"\xc0garbage", b"\x00"])
def test_a_datagram_without_a_handshake_stays_whole(datagram: bytes) -> None:
    assert _handshake_bytes(datagram) == len(datagram)
