"""From a prefix that is not here to what is told to the engine: how much, and how long to wait."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from disk_bed import (
    BLOCK_BYTES,
    FILE_BYTES,
    SEALS,
    block_of,
    hash_of,
    path_of,
    tier,
    wait_until,
)

from firstlight.core_node.backends.backend import Batch
from firstlight.core_node.kv import loader
from firstlight.core_node.kv.disk import DiskTier
from firstlight.core_node.kv.index import KvIndex
from firstlight.core_node.kv.index_keys import Holder
from firstlight.core_node.kv.index_keys import Tier as Kept
from firstlight.core_node.kv.loader import Loader
from firstlight.core_node.kv.peers import Peers
from firstlight.core_node.kv.transfer import Arrived
from firstlight.shared.clock import monotonic_s
from firstlight.shared.engine.plan import Buffer, Prefix
from firstlight.shared.routing.fetch import Way
from firstlight.shared.types import Done, Load, MeshView, NodeInfo, Report, Role

CHAIN = tuple(hash_of(number) for number in range(12))
ME, OTHER = (
    NodeInfo(name, Role.CORE, 1, "eu", "127.0.0.1:1", "class") for name in ("core-a", "core-b")
)


@dataclass
class Told:
    """An engine that takes everything in at once and remembers it."""

    expected: list[tuple[str, int, bool]] = field(default_factory=list)
    """(request, blocks, whether it is to wait)."""
    landed: list[bytes] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def expect(self, handle: str, blocks: int, hold_s: float) -> None:
        self.expected.append((handle, blocks, hold_s > 0))

    def no_more(self, handle: str) -> None:
        self.ended.append(handle)

    def land(self, block_hash: bytes, payload: Buffer) -> None:
        assert bytes(payload) == block_of(CHAIN.index(block_hash))
        self.landed.append(block_hash)

    def load(self) -> Load:
        return Load(prefill_ms_per_token=10.0)

    def note(self, handle: str, what: str, detail: str = "") -> None: ...


@dataclass
class Index:
    """Says that the other core has it all."""

    absent_from: list[int] = field(default_factory=list)

    async def lookup(self, hashes: Sequence[bytes], *, beyond: int = 0) -> tuple[Holder, ...]:
        return (Holder("core-b", len(hashes), Kept.DEVICE),)

    def absent(self, hashes: Sequence[bytes], blocks: int, holder: Holder) -> None:
        self.absent_from.append(blocks)


def peers() -> Peers:
    made = Peers(ME, lambda address: None)  # type: ignore[arg-type, return-value]
    made.seen(MeshView("lb", 1, ((Report(OTHER, 1), 0.0),)))
    return made


def build(
    engine: Told,
    *,
    disk: DiskTier | None = None,
    index: Index | None = None,
    host_blocks: int = 64,
    ways: Sequence[Way] = tuple(Way),
) -> tuple[Loader, Peers]:
    known = peers()
    made = Loader(
        engine,
        index=index or KvIndex(None, namespace="n", node="core-a", epoch=1, peers=known.names),  # type: ignore[arg-type]
        disk=disk,
        peers=known,
        seals=SEALS,
        block_bytes=BLOCK_BYTES,
        host_blocks=host_blocks,
        ways=ways,
    )
    return made, known


def want(made: Loader, *names: str, here: int = 0) -> None:
    made.deliver(Batch(wanted=tuple((name, Prefix(CHAIN, here)) for name in names)))


async def until_ended(engine: Told, count: int = 1) -> None:
    async with asyncio.timeout(10):
        while len(engine.ended) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture
def disk(tmp_path: Path) -> AsyncIterator[DiskTier]:
    with tier(tmp_path, blocks=32) as made:
        for number in range(12):
            made.offer(hash_of(number), block_of(number))
        wait_until(lambda: made.leading(CHAIN) == 12)
        yield made


async def test_what_is_read_faster_than_computed_is_waited_for_and_comes_from_the_back(
    disk: DiskTier,
) -> None:
    engine = Told()
    made, _ = build(engine, disk=disk)
    want(made, "a", here=3)
    await until_ended(engine)
    assert engine.expected == [("a", 12, True)]
    assert engine.landed == [*reversed(CHAIN[3:])]
    await made.close()


def spoiled(folder: Path, *numbers: int) -> tuple[int, ...]:
    """These blocks are not on disk what was written any more."""
    for number in numbers:
        path_of(folder, number).write_bytes(bytes(FILE_BYTES))
    return numbers


async def test_blocks_that_are_bad_on_disk_cost_themselves_and_not_the_rest_of_the_chain(
    disk: DiskTier, tmp_path: Path
) -> None:
    bad = spoiled(tmp_path, 0, 4, 9)
    engine = Told()
    made, _ = build(engine, disk=disk)
    want(made, "a")
    await until_ended(engine)
    assert engine.landed == [CHAIN[n] for n in reversed(range(12)) if n not in bad]
    await made.close()


async def test_all_bad_blocks_of_a_chain_are_found_at_once_and_can_be_written_again(
    disk: DiskTier, tmp_path: Path
) -> None:
    bad = spoiled(tmp_path, 0, 4, 9)
    engine = Told()
    made, _ = build(engine, disk=disk)
    want(made, "a")
    await until_ended(engine)
    assert [n for n in range(12) if not disk.holds(hash_of(n))] == [*bad]
    for number in bad:  # they were computed
        assert disk.offer(hash_of(number), block_of(number))
    wait_until(lambda: disk.leading(CHAIN) == 12)
    want(made, "b")
    await until_ended(engine, 2)
    assert len(engine.landed) == 9 + 12
    await made.close()


async def test_what_has_no_room_in_the_host_tier_is_computed_without_waiting(
    disk: DiskTier,
) -> None:
    engine = Told()
    made, _ = build(engine, disk=disk, host_blocks=8)
    want(made, "a")
    await until_ended(engine)
    assert engine.expected == [("a", 12, False)]
    assert engine.landed == [*reversed(CHAIN[6:])]
    await made.close()


async def test_no_more_is_asked_for_than_one_call_may_want(
    disk: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "HASHES_MAX", 4)
    engine = Told()
    made, _ = build(engine, disk=disk)
    want(made, "a")
    await until_ended(engine)
    assert engine.landed == [*reversed(CHAIN[8:])]
    await made.close()


async def test_requests_with_one_prefix_share_a_load_and_who_comes_late_finds_it_done(
    disk: DiskTier,
) -> None:
    engine = Told()
    made, _ = build(engine, disk=disk)
    want(made, "a", "b")
    await until_ended(engine, 2)
    want(made, "c")
    await until_ended(engine, 3)
    assert len(engine.landed) == 12
    assert sorted(name for name, *_ in engine.expected) == ["a", "b", "c"]
    await made.close()


async def test_without_a_host_tier_nothing_is_loaded(disk: DiskTier) -> None:
    engine = Told()
    made, _ = build(engine, disk=disk, host_blocks=0)
    want(made, "a")
    await asyncio.sleep(0.05)
    assert engine.expected == []
    await made.close()


async def test_a_peer_that_is_waited_for_in_vain_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*given: object) -> AsyncGenerator[Arrived, None]:
        await asyncio.sleep(60)
        yield Arrived(0, None)

    monkeypatch.setattr(loader, "fetch", silent)
    monkeypatch.setattr(loader, "LATE_MS", 20.0)
    engine = Told()
    made, known = build(engine, index=Index())
    peer = known.usable("core-b", monotonic_s())
    assert peer is not None
    peer.throughput.observe(8 << 20, 0.01, monotonic_s())
    want(made, "a")
    async with asyncio.timeout(5):
        while not engine.expected:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert engine.expected == [("a", 12, True)]
    await asyncio.sleep(0.1)
    made.deliver(Batch(done=(Done("a", 1),)))  # it was computed meanwhile
    await asyncio.sleep(0.05)
    assert known.usable("core-b", monotonic_s()) is None
    await made.close()


async def test_blocks_at_the_end_that_are_gone_shorten_a_load_and_a_hole_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def holes(peer: object, channel: object, hashes: Sequence[bytes], *more: object):
        for index, block_hash in enumerate(hashes):
            number = CHAIN.index(block_hash)
            block = None if number in (11, 7) else bytearray(block_of(number))
            yield Arrived(index, block)

    monkeypatch.setattr(loader, "fetch", holes)
    engine, index = Told(), Index()
    made, _ = build(engine, index=index)
    want(made, "a")
    await until_ended(engine)
    assert [blocks for _, blocks, _ in engine.expected] == [12, 11]
    assert engine.landed == [CHAIN[10], CHAIN[9], CHAIN[8]]
    assert index.absent_from == [12, 8]
    await made.close()


async def test_where_only_fetching_is_allowed_it_waits_for_a_link_however_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def slow(peer: object, channel: object, hashes: Sequence[bytes], *more: object):
        for index, block_hash in enumerate(hashes):
            await asyncio.sleep(0.05)
            yield Arrived(index, bytearray(block_of(CHAIN.index(block_hash))))

    monkeypatch.setattr(loader, "fetch", slow)
    monkeypatch.setattr(loader, "LATE", 0.0)
    monkeypatch.setattr(loader, "LATE_MS", 0.0)  # what may be late is not waited for
    monkeypatch.setattr(loader, "DEADLINE_S", -10.0)  # a load that may be late ends at once
    engine = Told()
    made, _ = build(engine, index=Index(), ways=[Way.FETCH])
    want(made, "a")
    await until_ended(engine)
    assert engine.expected == [("a", 12, True)]
    assert engine.landed == [*reversed(CHAIN)]
    await made.close()


async def test_where_only_computing_is_allowed_nothing_is_brought(disk: DiskTier) -> None:
    engine = Told()
    made, _ = build(engine, disk=disk, ways=[Way.RECOMPUTE])
    want(made, "a")
    await asyncio.sleep(0.05)
    assert (engine.expected, engine.landed) == ([], [])
    await made.close()
