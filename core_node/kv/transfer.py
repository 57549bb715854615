"""Blocks over the wire, both ends: a core that has them sends, one that has not takes them in.

    taker   Wanted(hashes, the last block first; credit) ─►
    giver                          ◄─ empty Piece at once, then pieces as far as the credit goes
    taker   Wanted(credit) as what came was taken in ─►   … or it cancels, and the giver stops

Every piece is sealed (`kv.seal`). A block that the giver does not have is said to be absent, and
the next one follows. Reading goes by a few blocks at a time, one batch ahead of what is sent.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import grpc
import grpc.aio

from firstlight.core_node.kv.peers import Peer
from firstlight.core_node.kv.seal import PIECE_BYTES_MAX, BlockSeals, pieces
from firstlight.shared import rpc
from firstlight.shared.blocks import HASH_BYTES
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import CapacityError, PeerError
from firstlight.shared.proto import blocks_pb2, blocks_pb2_grpc
from firstlight.shared.types import Role

HASHES_MAX = 4096
"""Blocks of one call."""
SERVED_MAX = 4
"""Calls that are served at the same time; more are refused, and recompute."""
READ_BYTES = 8 << 20
"""Of blocks that are read at a time; at least one block."""
CREDIT_WAIT_S = 10.0
"""A taker that grants nothing for this long is left."""
SILENT_S = 5.0
"""A giver that sends no piece for this long is left: a megabyte at 2 Mbit/s takes 4 s."""
WINDOW_BYTES_MAX, WINDOW_BYTES_MIN = 16 << 20, 64 << 10
"""Of payload on the way or waiting to be taken in; at least two pieces."""
WINDOW_S = 0.25
"""Between these it is what comes in such a time."""

Context = grpc.aio.ServicerContext[blocks_pb2.Wanted, blocks_pb2.Piece]
ReadBlocks = Callable[[Sequence[bytes]], Awaitable[list[bytes | None]]]


class BadBlockError(PeerError):
    """A peer sent bytes that are not the block's."""

    def __init__(self, message: str, block_hash: bytes) -> None:
        super().__init__(message)
        self.block_hash = block_hash


class BlocksService(blocks_pb2_grpc.BlocksServicer):
    """The giving end."""

    def __init__(
        self,
        read: ReadBlocks,
        seals: BlockSeals,
        block_bytes: int,
        *,
        absent: Callable[[bytes], None] = lambda block_hash: None,
    ) -> None:
        """`absent` hears of each block that was wanted and is not here."""
        self._read, self._seals, self._block_bytes = read, seals, block_bytes
        self._absent = absent
        self._serving = 0

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service."""
        blocks_pb2_grpc.add_BlocksServicer_to_server(self, server)

    async def Fetch(
        self, request_iterator: AsyncIterator[blocks_pb2.Wanted], context: Context
    ) -> AsyncIterator[blocks_pb2.Piece]:
        """One taker's call. An async generator itself: gRPC looks at the function."""
        await rpc.require_role(context, {Role.CORE})
        if self._serving >= SERVED_MAX:
            words = f"{SERVED_MAX} fetches are served, the most that are"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        self._serving += 1
        credit = _Credit(request_iterator)
        try:
            wanted = await credit.first()
            if (wrong := self._wrong(wanted)) is not None:
                await context.abort(*wrong)
            yield blocks_pb2.Piece()
            async for piece in self._pieces(wanted.hashes, credit):
                yield piece
            await credit.end()
        except TimeoutError:
            words = f"no credit for {CREDIT_WAIT_S:g} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, words)
        except CapacityError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, error.message)
        finally:
            self._serving -= 1
            credit.close()

    def _wrong(self, wanted: blocks_pb2.Wanted) -> tuple[grpc.StatusCode, str] | None:
        if wanted.namespace != self._seals.namespace:
            words = f"namespace {wanted.namespace[:40]!r}, expected {self._seals.namespace}"
            return grpc.StatusCode.FAILED_PRECONDITION, words
        if not 0 < len(wanted.hashes) <= HASHES_MAX:
            words = f"{len(wanted.hashes)} hashes, expected 1 to {HASHES_MAX}"
            return grpc.StatusCode.INVALID_ARGUMENT, words
        if any(len(block_hash) != HASH_BYTES for block_hash in wanted.hashes):
            return grpc.StatusCode.INVALID_ARGUMENT, f"a hash is not of {HASH_BYTES} bytes"
        return None

    async def _pieces(
        self, hashes: Sequence[bytes], credit: "_Credit"
    ) -> AsyncIterator[blocks_pb2.Piece]:
        step = max(1, READ_BYTES // self._block_bytes)
        batches = [hashes[start : start + step] for start in range(0, len(hashes), step)]
        ahead = asyncio.ensure_future(self._read(batches[0]))
        try:
            for number, batch in enumerate(batches):
                blocks = await ahead
                if number + 1 < len(batches):
                    ahead = asyncio.ensure_future(self._read(batches[number + 1]))
                for place, (block_hash, block) in enumerate(zip(batch, blocks, strict=True)):
                    index = number * step + place
                    if block is None:
                        self._absent(block_hash)
                        yield blocks_pb2.Piece(index=index, absent=True)
                        continue
                    for piece in self._sealed(index, block_hash, block):
                        await credit.take(len(piece.payload))
                        yield piece
        finally:
            ahead.cancel()

    def _sealed(self, index: int, block_hash: bytes, block: bytes) -> "list[blocks_pb2.Piece]":
        view, total = memoryview(block), len(block)
        return [
            blocks_pb2.Piece(
                index=index,
                offset=offset,
                total=total,
                payload=bytes(view[offset : offset + length]),
                mac=self._seals.seal(block_hash, offset, total, view[offset : offset + length]),
            )
            for offset, length in pieces(total)
        ]


class _Credit:
    """How many bytes the taker has room for, as its messages say."""

    def __init__(self, messages: AsyncIterator[blocks_pb2.Wanted]) -> None:
        self._messages = messages
        self._granted = self._taken = 0
        self._more = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def first(self) -> blocks_pb2.Wanted:
        """The message that says what is wanted; raises `TimeoutError`."""
        async with asyncio.timeout(CREDIT_WAIT_S):
            async for message in self._messages:
                self._granted = message.credit_bytes
                self._reading = asyncio.create_task(self._read())
                # A taker that is gone ends it with an error that is nobody's business.
                self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())
                return message
        return blocks_pb2.Wanted()

    async def take(self, count_bytes: int) -> None:
        """Wait until so many more may be sent; raises `TimeoutError`."""
        self._taken += count_bytes
        async with asyncio.timeout(CREDIT_WAIT_S):
            while self._granted < self._taken:
                self._more.clear()
                await self._more.wait()

    async def end(self) -> None:
        """Wait until the taker has ended the call: what it writes to one that has ended breaks it,
        and what it had not read by then is lost."""
        assert self._reading is not None
        await asyncio.wait((self._reading,), timeout=CREDIT_WAIT_S)

    def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        async for message in self._messages:
            self._granted = max(self._granted, message.credit_bytes)
            self._more.set()


@dataclass(frozen=True, slots=True)
class Arrived:
    """A block that came, or is absent where it was asked."""

    index: int
    """In the hashes that were asked for."""
    block: bytearray | None


async def fetch(
    peer: Peer,
    channel: grpc.aio.Channel,
    hashes: Sequence[bytes],
    seals: BlockSeals,
    block_bytes: int,
    room: Callable[[], Awaitable[None]],
) -> AsyncGenerator[Arrived, None]:
    """The taking end: blocks in the order of `hashes`; measures the peer on the way.

    `room` is awaited before more is asked for than the first window. Raises `PeerError` when the
    peer breaks off or is silent, `CapacityError` when it has no room for another taker,
    `BadBlockError` for bytes that are not the block's.
    """
    call = blocks_pb2_grpc.BlocksStub(channel).Fetch(wait_for_ready=False)
    taking, window = _Taking(hashes, seals, block_bytes), Window(block_bytes, peer.rtt.ms)
    began_s = monotonic_s()
    first_s: float | None = None
    try:
        wanted = blocks_pb2.Wanted(namespace=seals.namespace, hashes=hashes)
        wanted.credit_bytes = window.granted_bytes
        await call.write(wanted)
        while taking.next < len(hashes):
            piece = await _read(call, peer)
            if first_s is None:
                first_s = monotonic_s()
                peer.rtt.observe((first_s - began_s) * 1000, first_s)
                continue
            arrived = taking.take(piece)
            if arrived is not None:
                yield arrived
            more = window.widened(taking.bytes, monotonic_s() - first_s)
            if more and taking.next < len(hashes):
                await room()
                await call.write(blocks_pb2.Wanted(credit_bytes=window.granted_bytes))
    except grpc.aio.AioRpcError as error:
        words = error.details() or error.code().name
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise CapacityError(f"core {peer.info.node} serves no fetch now: {words}") from None
        raise PeerError(f"core {peer.info.node} broke off a fetch: {words}") from None
    except asyncio.InvalidStateError:  # so gRPC says that a call had ended when it was written to
        raise PeerError(f"core {peer.info.node} broke off a fetch") from None
    finally:
        now = monotonic_s()
        if first_s is not None:  # a wait for what never came is part of how fast it is
            peer.throughput.observe(taking.bytes, now - first_s, now)
        call.cancel()


class Window:
    """How far the giver may be ahead: by what comes in a quarter of a second, as fast as it comes,
    or in two round trips, if those take longer: a smaller window would itself be what is slow.

    What is on the way when a load is met is of no use, and the next one waits behind it. While more
    is not granted, the giver still has credit for a piece, so that it never waits in vain.
    """

    def __init__(self, block_bytes: int, rtt_ms: float) -> None:
        self._ahead_s = max(WINDOW_S, 2 * rtt_ms / 1000)
        self._least_bytes = max(WINDOW_BYTES_MIN, 2 * min(block_bytes, PIECE_BYTES_MAX))
        self.granted_bytes = self._least_bytes
        """All that the giver may send since the beginning."""

    def widened(self, come_bytes: int, took_s: float) -> bool:
        """Grant more if it is worth a message, when so much has come in so long."""
        lately = come_bytes / took_s * self._ahead_s if took_s > 0 else 0.0
        window = max(self._least_bytes, int(min(lately, WINDOW_BYTES_MAX)))
        if come_bytes + window - self.granted_bytes < window // 4:
            return False
        self.granted_bytes = come_bytes + window
        return True


class _Taking:
    """Puts pieces together, and believes none that is not sealed."""

    def __init__(self, hashes: Sequence[bytes], seals: BlockSeals, block_bytes: int) -> None:
        self._hashes, self._seals, self._block_bytes = hashes, seals, block_bytes
        self._block = bytearray(block_bytes)
        self._filled = 0
        self.next = 0
        """Index of the block that comes."""
        self.bytes = 0

    def take(self, piece: blocks_pb2.Piece) -> Arrived | None:
        """The block that this piece completes. Raises `PeerError`."""
        if piece.index != self.next or piece.offset != self._filled:
            raise PeerError(
                f"a piece of block {piece.index} at {piece.offset}, "
                f"expected {self.next} at {self._filled}"
            )
        if piece.absent:
            if self._filled:
                raise PeerError(f"block {piece.index} is absent from {self._filled} on")
            self.next += 1
            return Arrived(piece.index, None)
        payload, block_hash = piece.payload, self._hashes[self.next]
        due = min(PIECE_BYTES_MAX, self._block_bytes - self._filled)
        fits = piece.total == self._block_bytes and len(payload) == due
        if not fits or not self._seals.holds(
            piece.mac, block_hash, piece.offset, piece.total, payload
        ):
            raise BadBlockError(
                f"block {block_hash.hex()} at {piece.offset}: {len(payload)} bytes that were not "
                "sealed for it",
                block_hash,
            )
        self._block[self._filled : self._filled + len(payload)] = payload
        self._filled += len(payload)
        self.bytes += len(payload)
        if self._filled < self._block_bytes:
            return None
        whole, self._block, self._filled = self._block, bytearray(self._block_bytes), 0
        self.next += 1
        return Arrived(piece.index, whole)


async def _read(
    call: "grpc.aio.StreamStreamCall[blocks_pb2.Wanted, blocks_pb2.Piece]", peer: Peer
) -> blocks_pb2.Piece:
    try:
        async with asyncio.timeout(SILENT_S):
            piece = await call.read()
    except TimeoutError:
        words = f"core {peer.info.node} sent nothing for {SILENT_S:g} s"
        raise PeerError(words) from None
    if not isinstance(piece, blocks_pb2.Piece):
        raise PeerError(f"core {peer.info.node} ended a fetch before its last block")
    return piece
