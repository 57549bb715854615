"""Hostile datagrams cost little and harm no other client of the HTTP/3 front."""

import asyncio
import os
import socket
from typing import Any

import pytest
from aioquic.buffer import Buffer
from aioquic.h3.connection import H3_ALPN
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType, pull_quic_header
from edge_tls import TlsFiles
from http_bed import Edge

from firstlight.edge_node.http.server import READY_AGAIN_S
from firstlight.shared.errors import PeerError


def initial(port: int, tls: TlsFiles) -> bytes:
    """The first datagram of a client that will never go on."""
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, server_name="localhost")
    quic = QuicConnection(configuration=configuration)
    quic.connect(("127.0.0.1", port), now=0.0)
    return quic.datagrams_to_send(now=0.0)[0][0]


async def exchange_datagram(port: int, data: bytes, wait_s: float = 0.3) -> bytes | None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect(("127.0.0.1", port))
        await loop.sock_sendall(sock, data)
        try:
            return await asyncio.wait_for(loop.sock_recv(sock, 2048), wait_s)
        except TimeoutError:
            return None


async def test_unfinished_handshakes_make_new_clients_prove_their_address(open_edge: Any) -> None:
    edge = await open_edge(half_open_retry=4, handshake_timeout_s=30.0)
    for _ in range(4):
        await exchange_datagram(edge.fronts.port, initial(edge.fronts.port, edge.tls))
    answers = [
        await exchange_datagram(edge.fronts.port, initial(edge.fronts.port, edge.tls))
        for _ in range(3)
    ]
    for answer in answers:
        assert answer is not None
        header = pull_quic_header(Buffer(data=answer), host_cid_length=8)
        assert header.packet_type == QuicPacketType.RETRY
    assert edge.fronts._http3.connections == 4
    async with edge.client("3") as client:
        assert (await client.request("GET", "/hello")).status == 200
        assert (await client.connect()).quic._retry_count == 1


async def test_a_source_may_not_open_more_connections_than_its_share(open_edge: Any) -> None:
    edge = await open_edge(connections_per_source_max=2)
    async with edge.client("3") as first, edge.client("3") as second:
        for client in (first, second):
            assert (await client.request("GET", "/hello")).status == 200
        with pytest.raises(PeerError, match="did not answer"):
            await edge.client("3", connect_timeout_s=0.3).request("GET", "/hello")
    await asyncio.sleep(0.5)
    async with edge.client("3") as third:
        assert (await third.request("GET", "/hello")).status == 200


async def test_a_packet_of_a_forgotten_connection_is_answered_with_a_stateless_reset(
    edge: Edge,
) -> None:
    packet = b"\x40" + b"unknown!" + os.urandom(60)
    first = await exchange_datagram(edge.fronts.port, packet)
    second = await exchange_datagram(edge.fronts.port, packet)
    assert first is not None
    assert second is not None
    assert len(first) < len(packet)
    assert first[-16:] == second[-16:]
    assert first[:-16] != second[:-16]
    assert await exchange_datagram(edge.fronts.port, packet[:20], 0.1) is None


async def test_noise_is_dropped_and_costs_nobody_else(edge: Edge) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", edge.fronts.port))
        good = initial(edge.fronts.port, edge.tls)
        for index in range(200):
            noise = bytearray(good if index % 2 else os.urandom(1200))
            noise[index % 60] ^= 0xFF
            sock.send(bytes(noise))
        sock.send(b"")
    async with edge.client("3") as client:
        assert (await client.request("GET", "/hello")).status == 200


async def test_the_next_connection_is_made_ready_when_one_was_needed(open_edge: Any) -> None:
    edge = await open_edge()
    http3 = edge.fronts._http3
    seen = {http3._ready}
    for _ in range(2):
        async with edge.client("3") as first, edge.client("3") as unprepared:
            for client in (first, unprepared):
                assert (await client.request("GET", "/hello")).status == 200
            assert http3._ready not in seen
            await asyncio.sleep(2 * READY_AGAIN_S)
        seen.add(http3._ready)
    assert len(seen) == 3
