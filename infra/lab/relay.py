"""A relay before one node: TCP and UDP on loopback, held for as long as the link would take.

It is what a laboratory has without root. It can delay, spread and cut. It cannot lose, reorder or
limit: what it holds are pieces of a stream, not packets. A cut holds a stream's bytes back until it
is mended, as retransmission would, and drops datagrams; connections that are opened meanwhile hang.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from firstlight.infra.lab.links import Drop, Link
from firstlight.infra.lab.paths import Path as Way
from firstlight.shared.clock import monotonic_s

PIECE_BYTES = 16 << 10
PIECES_MAX = 64
"""Under way in one direction of a connection; beyond it the sender has to wait."""
PEERS_MAX = 1024
"""Senders of datagrams; beyond it the oldest is forgotten."""
CUT_POLL_S = 0.02

Between = Callable[[str, int], tuple[Way, Way]]
"""The ways there and back of whoever comes by `tcp` or `udp` from a port of this machine."""
_Piece = tuple[float, bytes]


@dataclass(frozen=True, slots=True)
class RelayPlan:
    """One relay."""

    node: str
    host: str
    port: int
    """Where it listens."""
    target_port: int
    """Where the node does, on the same host."""
    udp: bool
    """Whether datagrams are relayed as well."""


class Relay:
    """Relays while it is open; `open` it, then `close` it."""

    def __init__(self, plan: RelayPlan, between: Between) -> None:
        self.plan = plan
        self._between = between
        self._server: asyncio.Server | None = None
        self._front = _Front(plan, between)
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen. Raises `OSError`."""
        plan = self.plan
        self._server = await asyncio.start_server(self._accept, plan.host, plan.port)
        if plan.udp:
            loop = asyncio.get_running_loop()
            address = (plan.host, plan.port)
            await loop.create_datagram_endpoint(lambda: self._front, address)

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        self._front.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the loop's next turn

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Who comes is asked only for a server that is there, and beside the loop: it takes /proc
        long, and those who dial a dead server again and again would hold up all others."""
        try:
            target = asyncio.open_connection(self.plan.host, self.plan.target_port)
            far_reader, far_writer = await target
            try:
                port = int(writer.get_extra_info("peername")[1])
                there, back = await asyncio.to_thread(self._between, "tcp", port)
                for way in (there, back):  # what the connection's own opening takes
                    await _wait_until(await _leaves(way, 0), way.link)
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pump(reader, far_writer, there))
                    both.create_task(_pump(far_reader, writer, back))
            finally:
                far_writer.close()
        except* OSError:
            pass  # one end is gone, and so is the connection
        finally:
            writer.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: Way) -> None:
    pieces: asyncio.Queue[_Piece] = asyncio.Queue(PIECES_MAX)
    async with asyncio.TaskGroup() as both:
        both.create_task(_take(source, pieces, way))
        both.create_task(_give(sink, pieces, way))


async def _take(source: asyncio.StreamReader, pieces: asyncio.Queue[_Piece], way: Way) -> None:
    """Read pieces and set the time of each; an empty one is the end."""
    data = b"-"
    while data:
        data = await source.read(PIECE_BYTES)
        await pieces.put((await _leaves(way, len(data)), data))


async def _give(sink: asyncio.StreamWriter, pieces: asyncio.Queue[_Piece], way: Way) -> None:
    while True:
        leaves, data = await pieces.get()
        await _wait_until(leaves, way.link)
        if not data:
            with suppress(OSError):
                sink.write_eof()
            return
        sink.write(data)
        await sink.drain()


async def _leaves(way: Way, size_bytes: int) -> float:
    """When a piece that comes now leaves; waits while the link is cut."""
    way.packets += 1
    way.bytes += size_bytes
    while True:
        leaves = way.link.send(size_bytes, monotonic_s())
        if not isinstance(leaves, Drop):
            return leaves
        await _mended(way.link)


async def _wait_until(leaves: float, link: Link) -> None:
    await asyncio.sleep(max(0.0, leaves - monotonic_s()))
    await _mended(link)


async def _mended(link: Link) -> None:
    """Wait until a link is not cut; it is plain data, which tells nobody when it changes."""
    while True:
        if not link.cut:
            return
        await asyncio.sleep(CUT_POLL_S)


class _Front(asyncio.DatagramProtocol):
    """What senders see. Each gets a socket of its own towards the node, so that answers find it."""

    def __init__(self, plan: RelayPlan, between: Between) -> None:
        self._plan, self._between = plan, between
        self._peers: dict[tuple[str, int], _Back] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def answer(self, data: bytes, sender: tuple[str, int]) -> None:
        """What the node says to a sender."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data, sender)

    def close(self) -> None:
        """Hear and say nothing more."""
        if self._transport is not None:
            self._transport.close()
        for back in self._peers.values():
            back.close()

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        back = self._peers.get(sender)
        if back is None:
            if len(self._peers) >= PEERS_MAX:
                self._peers.pop(next(iter(self._peers))).close()
            there, home = self._between("udp", sender[1])
            back = self._peers[sender] = _Back(self, sender, there, home)
            loop = asyncio.get_running_loop()
            target = (self._plan.host, self._plan.target_port)
            task = loop.create_task(loop.create_datagram_endpoint(lambda: back, remote_addr=target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        _later(back.there, data, back.send)


class _Back(asyncio.DatagramProtocol):
    """Towards the node, for one sender."""

    def __init__(self, front: _Front, sender: tuple[str, int], there: Way, home: Way) -> None:
        self._front, self._sender = front, sender
        self.there, self.home = there, home
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, _: object) -> None:
        _later(self.home, data, lambda late: self._front.answer(late, self._sender))

    def send(self, data: bytes) -> None:
        """To the node; lost, as datagrams are, if there is no way to it yet."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _later(way: Way, data: bytes, deliver: Callable[[bytes], None]) -> None:
    way.packets += 1
    way.bytes += len(data)
    leaves = way.link.send(len(data), monotonic_s())
    if isinstance(leaves, Drop):
        way.drops[leaves] += 1
        return
    loop = asyncio.get_running_loop()
    loop.call_later(max(0.0, leaves - monotonic_s()), deliver, data)
