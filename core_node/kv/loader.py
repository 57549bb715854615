"""Brings the prefixes of requests here that the disk or another core holds, beside their computing.

    the engine took a request, and this much of its prefix is not here
      ─► disk? index: which core has more of it? ─► plan: recompute, fetch, or split
      ─► expect ─► blocks, the last one first ─► land … ─► met, or no more of them come

The engine never waits for the lookup: it computes from the front at once, unless the plan says that
this would be in vain. Whatever goes wrong on the way ends in computing what has not landed. Two
requests with one prefix share a load; the last one that ends takes it along.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from firstlight.core_node.backends.backend import Batch
from firstlight.core_node.kv.disk import DiskTier
from firstlight.core_node.kv.index import KvIndex
from firstlight.core_node.kv.index_keys import Holder
from firstlight.core_node.kv.peers import Peer, Peers
from firstlight.core_node.kv.seal import BlockSeals
from firstlight.core_node.kv.transfer import HASHES_MAX, SILENT_S, Arrived, BadBlockError, fetch
from firstlight.shared import telemetry
from firstlight.shared.blocks import BLOCK_TOKENS, Buffer
from firstlight.shared.clock import monotonic_s
from firstlight.shared.engine.plan import Prefix
from firstlight.shared.errors import CapacityError, PeerError
from firstlight.shared.estimate import Throughput
from firstlight.shared.routing.cost import PREFILL_PRIOR_MS
from firstlight.shared.routing.fetch import GAIN_MS_MIN, Plan, Source, Way, plan_prefix
from firstlight.shared.types import Load

LOADS_MAX = 16
"""Loads at the same time; what comes beyond them is computed."""
HOLDERS_MAX = 3
"""Cores that are weighed for one prefix, those with the longest first."""
UNLANDED_BYTES_MAX = 32 << 20
"""Of blocks that the engine has not taken in: it does so between steps."""
LINGER_S = 1.0
"""A prefix that came is not loaded again for so long: the engine may be about to take it in."""
DISK_BYTES_PER_S_PRIOR = 500e6
LATE = 1.5
"""Hold back computing for so many times what the plan says; a load that takes longer is split."""
LATE_MS = 100.0
DEADLINE = 1.5
"""A load ends after so many times what computing all of it would take,"""
DEADLINE_S = 5.0
"""and this."""
FETCH_S_MAX = 60.0
"""A load ends after this where it must be fetched whatever it costs."""
ROOM_SHARE = 0.75
"""Of the host tier, for one load, which is one call: what does not fit is computed."""

log = logging.getLogger(__name__)


class Engine(Protocol):
    """What the loader needs of a backend."""

    def expect(self, handle: str, blocks: int, hold_s: float) -> None:
        """The first `blocks` blocks of a request will land; it waits for them, but not longer."""
        ...

    def no_more(self, handle: str) -> None:
        """What was expected for a request and has not landed will not."""
        ...

    def land(self, block_hash: bytes, payload: Buffer) -> None:
        """A block's KV from elsewhere."""
        ...

    def load(self) -> Load:
        """How busy it is, and how fast it computes."""
        ...

    def note(self, handle: str, what: str, detail: str = "") -> None:
        """For whoever asks later what happened to a request."""
        ...


@dataclass(frozen=True, slots=True)
class Find:
    """Where a missing part is: blocks `start` to `disk` on disk, the rest up to `end` at a peer."""

    hashes: Sequence[bytes]
    here: int
    """That the engine has."""
    start: int
    disk: int
    end: int
    peer: Peer | None
    holder: Holder | None
    """What the index said of the peer."""
    plan: Plan
    compute_ms: float
    """What computing all of it would take."""


@dataclass(slots=True)
class _Load:
    """One prefix on its way, for all who wait for it."""

    find: Find
    end: int
    """Blocks that are expected in the end; fewer than `find.end` if the last ones are gone."""
    handles: set[str]
    hold_until_s: float
    began_s: float
    task: "asyncio.Task[None] | None" = None
    done: bool = False
    """Whether all of it came."""
    blocks: int = 0
    """That came."""
    fate: str = "broken"
    """How it ended."""


class Loader:
    """Watches what the engine takes, and loads for it."""

    def __init__(
        self,
        engine: Engine,
        *,
        index: KvIndex,
        disk: DiskTier | None,
        peers: Peers,
        seals: BlockSeals,
        block_bytes: int,
        host_blocks: int,
        ways: Collection[Way] = tuple(Way),
    ) -> None:
        """`host_blocks`: of the host tier, where what is loaded lands. `ways` are allowed."""
        self._engine, self._index, self._disk = engine, index, disk
        self._peers, self._seals, self._block_bytes = peers, seals, block_bytes
        self._room_blocks = min(int(host_blocks * ROOM_SHARE), HASHES_MAX)
        self._ways = ways
        self._must_fetch = set(ways) == {Way.FETCH}
        self._disk_speed = Throughput(DISK_BYTES_PER_S_PRIOR)
        self._finding: dict[str, asyncio.Task[None]] = {}
        """Handles whose prefix is looked for."""
        self._loads: dict[bytes, _Load] = {}
        """By the hash of the last block."""
        self._of: dict[str, _Load] = {}
        self._closed = False
        self._unlanded_bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    def deliver(self, batch: Batch) -> None:
        """What the engine did; called on the event loop."""
        if batch.landed_bytes:
            self._unlanded_bytes -= batch.landed_bytes
            self._room.set()
        for handle, prefix in batch.wanted:
            self._want(handle, prefix)
        for handle in batch.met:
            self._leave(handle)
        for done in batch.done:
            self._leave(done.request)
        for failure in batch.failures:
            self._leave(failure.handle)

    def cancel(self) -> list[asyncio.Task[None]]:
        """End all loads; returns what ends."""
        loads = [load.task for load in self._loads.values() if load.task is not None]
        tasks = [*self._finding.values(), *loads]
        for task in tasks:
            task.cancel()
        return tasks

    async def close(self) -> None:
        """End all loads, and begin no more."""
        self._closed = True
        await asyncio.gather(*self.cancel(), return_exceptions=True)

    # From a request to what there is to load for it.

    def _want(self, handle: str, prefix: Prefix) -> None:
        missing = len(prefix.hashes) - prefix.here
        if self._closed or not self._room_blocks or missing * self._compute_ms() < GAIN_MS_MIN:
            return
        running = sum(not load.done for load in self._loads.values())
        if len(self._finding) + running >= LOADS_MAX:
            telemetry.KV_LOADS.labels(way="none", fate="busy").inc()
            return
        task = asyncio.create_task(self._find_and_load(handle, prefix))
        self._finding[handle] = task
        task.add_done_callback(partial(self._found, handle))

    def _found(self, handle: str, task: "asyncio.Task[None]") -> None:
        self._finding.pop(handle, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a prefix could not be looked for: a bug of ours", exc_info=error)

    async def _find_and_load(self, handle: str, prefix: Prefix) -> None:
        find = await self._find(prefix)
        if find is None:
            return
        telemetry.KV_PLANS.labels(way=find.plan.way).inc()
        source = "disk" if find.peer is None else find.peer.info.node
        self._engine.note(handle, f"prefix: {find.plan.way}", f"{source}: {find.plan.reason}")
        if find.plan.way is Way.RECOMPUTE:
            return
        key = find.hashes[find.end - 1]
        load = self._loads.get(key)
        if load is None:
            load = self._begin(find)
        self._expect(load, handle)
        if load.task is not None and load.task.done():  # all that comes of it is here
            self._engine.no_more(handle)
            return
        load.handles.add(handle)
        self._of[handle] = load

    async def _find(self, prefix: Prefix) -> Find | None:
        """The best that can be done, or None if nobody has anything of it."""
        hashes, here = prefix.hashes, prefix.here
        disk = here if self._disk is None else here + self._disk.leading(hashes[here:])
        finds = [self._weigh(prefix, disk, disk)] if disk > here else []
        if disk < len(hashes):
            holders = await self._index.lookup(hashes, beyond=disk)
            now = monotonic_s()
            for holder in holders[:HOLDERS_MAX]:
                peer = self._peers.usable(holder.node, now)
                end = self._good(holder, hashes, now)
                if peer is not None and end > disk:
                    finds.append(self._weigh(prefix, disk, end, peer, holder))
        each_ms = self._compute_ms()

        def all_ms(find: Find) -> float:
            return find.plan.ms + (len(hashes) - find.end + find.start - here) * each_ms

        return min(finds, key=all_ms, default=None)

    def _good(self, holder: Holder, hashes: Sequence[bytes], now: float) -> int:
        return self._peers.good_blocks(holder.node, hashes[: holder.blocks], now)

    def _weigh(
        self,
        prefix: Prefix,
        disk: int,
        end: int,
        peer: Peer | None = None,
        holder: Holder | None = None,
    ) -> Find:
        now, start = monotonic_s(), max(prefix.here, end - self._room_blocks)
        disk, blocks, each_ms = max(disk, start), end - start, self._compute_ms()
        disk_ms = self._disk_speed.ms(self._block_bytes, now)
        if peer is None:
            source = Source(0.0, disk_ms)
        else:
            peer_ms = peer.throughput.ms(self._block_bytes, now)
            mean_ms = ((disk - start) * disk_ms + (end - disk) * peer_ms) / blocks
            source = Source(peer.rtt.ms, mean_ms, peer.throughput.measured(now))
        plan = plan_prefix(blocks, each_ms, source, self._ways)
        return Find(
            hashes=prefix.hashes,
            here=prefix.here,
            start=start,
            disk=disk,
            end=end,
            peer=peer,
            holder=holder,
            plan=plan,
            compute_ms=blocks * each_ms,
        )

    def _compute_ms(self) -> float:
        """A block's prefill."""
        return BLOCK_TOKENS * (self._engine.load().prefill_ms_per_token or PREFILL_PRIOR_MS)

    # A load, from its first block to its last.

    def _begin(self, find: Find) -> _Load:
        hold_s = 0.0
        if find.plan.way is Way.FETCH and find.start == find.here:  # else there is much to compute
            late_s = (LATE * find.plan.ms + LATE_MS) / 1000
            hold_s = FETCH_S_MAX if self._must_fetch else late_s
        now = monotonic_s()
        load = _Load(find, find.end, set(), now + hold_s, now)
        self._loads[find.hashes[find.end - 1]] = load
        load.task = asyncio.create_task(self._load(load))
        load.task.add_done_callback(partial(self._ended, load))
        return load

    def _ended(self, load: _Load, task: "asyncio.Task[None]") -> None:
        forget = partial(self._loads.pop, load.find.hashes[load.find.end - 1], None)
        if load.done:
            asyncio.get_running_loop().call_later(LINGER_S, forget)
        else:
            forget()
        for handle in load.handles:
            self._of.pop(handle, None)
            self._engine.note(handle, f"prefix {load.fate}", f"{load.blocks} blocks came")
            self._engine.no_more(handle)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a load failed: a bug of ours", exc_info=error)

    def _leave(self, handle: str) -> None:
        """A request needs nothing more."""
        if (finding := self._finding.get(handle)) is not None:
            finding.cancel()
        load = self._of.pop(handle, None)
        if load is None:
            return
        load.handles.discard(handle)
        self._engine.note(handle, "prefix met", f"after {load.blocks} blocks")
        if not load.handles and load.task is not None:
            load.task.cancel()

    def _expect(self, load: _Load, handle: str) -> None:
        self._engine.expect(handle, load.end, max(0.0, load.hold_until_s - monotonic_s()))

    async def _load(self, load: _Load) -> None:
        find = load.find
        late_s = DEADLINE * find.compute_ms / 1000 + DEADLINE_S
        try:
            async with asyncio.timeout(FETCH_S_MAX if self._must_fetch else late_s):
                from_peer = find.peer is None or await self._try_peer(load, find.peer)
                load.done = from_peer and await self._from_disk(load)
                load.fate = "done" if load.done else load.fate
        except TimeoutError:
            load.fate = "late"
            self._doubt(load)
        except asyncio.CancelledError:
            load.fate = "met"
            self._doubt(load)
            raise
        finally:
            telemetry.KV_LOADS.labels(way=str(find.plan.way), fate=load.fate).inc()
            await self._peers.trim()

    def _doubt(self, load: _Load) -> None:
        """A peer that was waited for longer than it should have taken, and sent nothing, rests."""
        peer, now = load.find.peer, monotonic_s()
        if peer is None or load.blocks or now < load.hold_until_s:
            return
        if load.find.plan.way is Way.FETCH or now - load.began_s >= SILENT_S:
            self._peers.failed(peer, now)

    async def _try_peer(self, load: _Load, peer: Peer) -> bool:
        """Whether what the disk has is still of use: all came, or nothing behind it did."""
        find, now = load.find, monotonic_s
        try:
            return await self._from_peer(load, peer)
        except BadBlockError as error:
            load.fate = "bad"
            log.warning("%s", error.message)
            self._peers.bad(peer, error.block_hash, now())  # others may well believe it
        except CapacityError:
            load.fate = "busy"
            self._peers.busy(peer, now())
        except PeerError as error:
            load.fate = "broken"
            log.warning("%s", error.message)
            self._peers.failed(peer, now())
        if load.blocks or find.disk == find.start:
            return False
        self._shorten(load, find.disk)
        return True

    async def _from_peer(self, load: _Load, peer: Peer) -> bool:
        """Whether it had all that was left to ask for."""
        find = load.find
        wanted = [*reversed(find.hashes[find.disk : find.end])]
        channel = self._peers.channel(peer)
        taken = fetch(peer, channel, wanted, self._seals, self._block_bytes, self._wait_for_room)
        async with aclosing(taken) as arriving:
            async for arrived in arriving:
                if not self._take(load, peer, find.end - 1 - arrived.index, arrived):
                    load.fate = "absent"
                    return False
        return True

    def _take(self, load: _Load, peer: Peer, index: int, arrived: Arrived) -> bool:
        """Land a block; False if what comes behind a hole would be of no use."""
        if arrived.block is not None:
            self._peers.succeeded(peer)
            self._land(load, index, arrived.block, "peer")
            return True
        self._absent(load.find, index)
        if load.end != index + 1:
            return False
        self._shorten(load, index)
        return index > load.find.start

    def _absent(self, find: Find, index: int) -> None:
        """The peer has no such block, whatever the index says."""
        assert find.holder is not None
        self._index.absent(find.hashes, index + 1, find.holder)

    def _shorten(self, load: _Load, end: int) -> None:
        """Nothing has come, and only these blocks still can."""
        load.end = end
        for handle in load.handles:
            self._expect(load, handle)

    async def _from_disk(self, load: _Load) -> bool:
        """Whether all of it was there.

        A block that is bad or gone costs itself: who waits computes it, and goes on behind the
        blocks after it, which have landed. That all are read also finds all that are bad: the disk
        forgets them, and takes them again once they are computed.
        """
        find, disk, whole = load.find, self._disk, True
        for index in range(find.disk - 1, find.start - 1, -1):
            assert disk is not None
            began_s = monotonic_s()
            block = await asyncio.to_thread(disk.read, find.hashes[index])
            if block is None:
                load.fate, whole = "bad", False
                continue
            now = monotonic_s()
            self._disk_speed.observe(len(block), now - began_s, now)
            await self._wait_for_room()
            self._land(load, index, block, "disk")
        return whole

    def _land(self, load: _Load, index: int, payload: Buffer, tier: str) -> None:
        load.blocks += 1
        self._unlanded_bytes += len(payload)
        telemetry.KV_LOADED_BYTES.labels(tier=tier).inc(len(payload))
        self._engine.land(load.find.hashes[index], payload)

    async def _wait_for_room(self) -> None:
        while self._unlanded_bytes > UNLANDED_BYTES_MAX:
            self._room.clear()
            await self._room.wait()
