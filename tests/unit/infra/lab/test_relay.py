"""A relay on loopback, with real sockets at both ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import SystemRandom
from time import monotonic
from typing import cast

import pytest

from firstlight.infra.lab.paths import Path as Way
from firstlight.infra.lab.paths import Paths
from firstlight.infra.lab.relay import PIECE_BYTES, PIECES_MAX, Relay, RelayPlan
from firstlight.infra.lab.relays import refuse_impossible
from firstlight.infra.lab.topology import Tcp, Topology
from firstlight.infra.ports import free_ports
from firstlight.shared.errors import ConfigError

HOST = "127.0.0.1"
RTT_S = 0.06


def topology(**link: object) -> Topology:
    node = {"role": "client", "region": "here"}
    return Topology.model_validate(
        {
            "regions": {"here": {}},
            "nodes": {"user": node, "node": node},
            "inside": {"rtt_ms": RTT_S * 1e3, **link},
        }
    )


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        self.transport.sendto(data, sender)


@dataclass
class Caller(asyncio.DatagramProtocol):
    heard: "asyncio.Queue[bytes]" = field(default_factory=asyncio.Queue)

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        self.heard.put_nowait(data)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def relayed() -> AsyncIterator[tuple[int, Paths]]:
    """The port of a relay before an echo, and its paths."""
    port, target = free_ports(2, SystemRandom())
    paths = Paths(topology())

    def between(kind: str, port: int) -> tuple[Way, Way]:
        return paths.path("user", "node"), paths.path("node", "user")

    server = await asyncio.start_server(echo, HOST, target)
    loop = asyncio.get_running_loop()
    datagrams, _ = await loop.create_datagram_endpoint(Echo, (HOST, target))
    relay = Relay(RelayPlan("node", HOST, port, target, udp=True), between)
    await relay.open()
    try:
        yield port, paths
    finally:
        await relay.close()
        datagrams.close()
        server.close()


async def test_an_opened_stream_takes_one_round_trip_and_each_answer_another() -> None:
    async with relayed() as (port, _):
        begun = monotonic()
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        assert 2 * RTT_S <= monotonic() - begun < 2 * RTT_S + 0.5
        begun = monotonic()
        writer.write(b"two")
        assert await reader.readexactly(3) == b"two"
        assert RTT_S <= monotonic() - begun < RTT_S + 0.5
        writer.close()


async def test_a_stream_arrives_whole_in_order_and_ends() -> None:
    data = bytes(range(256)) * (2 * PIECE_BYTES * PIECES_MAX // 256)
    async with relayed() as (port, _):
        reader, writer = await asyncio.open_connection(HOST, port)

        async def say() -> None:
            writer.write(data)
            await writer.drain()
            writer.write_eof()

        async with asyncio.TaskGroup() as both:
            both.create_task(say())
            heard = both.create_task(reader.read(-1))
        assert heard.result() == data
        writer.close()


async def test_a_cut_holds_a_stream_back_until_it_is_mended() -> None:
    async with relayed() as (port, paths):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"one")
        await reader.readexactly(3)
        paths.command({"do": "partition", "from": "node", "to": "user", "one_way": True})
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(3), 0.3)
        paths.command({"do": "heal"})
        assert await asyncio.wait_for(reader.readexactly(3), 5) == b"two"
        writer.close()


async def test_datagrams_take_a_round_trip_and_a_cut_drops_them() -> None:
    async with relayed() as (port, paths):
        caller = Caller()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: caller, remote_addr=(HOST, port))
        begun = monotonic()
        transport.sendto(b"one")
        assert await asyncio.wait_for(caller.heard.get(), 5) == b"one"
        assert RTT_S <= monotonic() - begun < RTT_S + 0.5
        paths.command({"do": "partition"})
        transport.sendto(b"two")
        await asyncio.sleep(0.05)
        paths.command({"do": "heal"})
        transport.sendto(b"three")
        assert await asyncio.wait_for(caller.heard.get(), 5) == b"three"
        assert paths.path("user", "node").drops == {"cut": 1}
        transport.close()


async def test_a_node_that_is_not_there_ends_the_connection() -> None:
    port, nobody = free_ports(2, SystemRandom())
    paths = Paths(topology())
    ways = paths.path("user", "node"), paths.path("node", "user")
    relay = Relay(RelayPlan("node", HOST, port, nobody, udp=False), lambda kind, port: ways)
    await relay.open()
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
        assert await asyncio.wait_for(reader.read(-1), 5) == b""
        writer.close()
    finally:
        await relay.close()


@pytest.mark.parametrize(
    ("link", "said"),
    [({"loss": 0.1}, "loss 0.1"), ({"mbit_per_s": 3}, "mbit_per_s 3"), ({"reorder": 1}, "reord")],
)
def test_a_link_that_relays_cannot_be_is_refused(link: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=f"{said}.*relays can delay and cut"):
        refuse_impossible(topology(**link))
    refuse_impossible(topology(jitter_ms=3))


def test_relays_leave_the_kernel_of_this_machine_alone() -> None:
    changed = topology().model_copy(update={"tcp": Tcp(slow_start_after_idle=False)})
    with pytest.raises(ConfigError, match="tcp_slow_start_after_idle is this whole machine's"):
        refuse_impossible(changed)
