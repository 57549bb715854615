"""A core that has not computed a prefix gets it from one that has; whatever fails, it computes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import SystemRandom

import grpc
import pytest
from doubles import alone, request
from kv_bed import NAMESPACE, Core, acquaint, core

from firstlight.core_node.config import KvSection
from firstlight.core_node.kv import transfer
from firstlight.core_node.kv.disk import DiskConfig, DiskTier
from firstlight.core_node.kv.index import IndexConfig
from firstlight.core_node.kv.seal import BlockSeals
from firstlight.infra.ports import free_ports
from firstlight.infra.valkey import ValkeyPlan, start_valkey, wait_answering
from firstlight.shared import rpc, telemetry
from firstlight.shared.blocks import block_hashes, root_hash
from firstlight.shared.proto import blocks_pb2, blocks_pb2_grpc
from firstlight.shared.redis_client import RedisConfig
from firstlight.shared.routing.fetch import Way
from firstlight.shared.tls import ensure_ca, issue
from firstlight.shared.types import Role, Sampling

PROMPT = tuple(range(100)) + tuple(range(3, 103))
BLOCKS = (len(PROMPT) - 1) // 16
GREEDY = Sampling(temperature=0.0)


def asking(name: str, prompt: Sequence[int] = PROMPT):
    return request(name, prompt, max_tokens=3, sampling=GREEDY, salt=bytes(16))


@pytest.fixture
async def section(tmp_path: Path) -> AsyncIterator[KvSection]:
    """An index that runs."""
    plan = ValkeyPlan("valkey", "eu", "127.0.0.1", free_ports(1, SystemRandom())[0])
    child = start_valkey(plan, tmp_path)
    await asyncio.to_thread(wait_answering, child, plan)
    redis = RedisConfig(plan.url, plan.password_file(tmp_path))
    yield KvSection(index=IndexConfig(redis, timeout_s=2.0))  # this machine may be busy
    child.kill()
    child.close()
    child.wait(5)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def told(one: Core) -> None:
    """Wait until the index has what the core holds."""
    await until(lambda: not one.memory._index.waiting)
    await asyncio.sleep(0.2)  # the last batch is on its way


def loads(fate: str) -> float:
    values = telemetry.KV_LOADS.collect()[0].samples
    return sum(s.value for s in values if s.labels.get("fate") == fate and s.name.endswith("total"))


async def two(stack: AsyncExitStack, folder: Path, section: KvSection, **second) -> tuple:
    one = await stack.enter_async_context(core("core-a", folder, section))
    other = await stack.enter_async_context(core("core-b", folder, section, **second))
    acquaint(one, other)
    await asyncio.sleep(0.3)  # both live in the index
    return one, other


async def test_a_prefix_that_another_core_computed_is_fetched_and_the_text_is_the_same(
    tmp_path: Path, section: KvSection
) -> None:
    async with AsyncExitStack() as stack:
        one, other = await two(stack, tmp_path, section)
        expected = await one.ask(asking("first"))
        assert one.cached_tokens("first") == 0
        await told(one)
        assert await other.ask(asking("second")) == expected == alone(asking("x"))
        assert other.cached_tokens("second") >= len(PROMPT) // 2
        assert sum(other.runner.rows) < len(PROMPT) // 2 + 16
        rows = sum(other.runner.rows)
        assert await other.ask(asking("third")) == expected  # now it has it itself
        assert sum(other.runner.rows) == rows + len(PROMPT) - BLOCKS * 16 + 2


async def test_only_the_shared_beginning_of_a_prompt_is_fetched(
    tmp_path: Path, section: KvSection
) -> None:
    async with AsyncExitStack() as stack:
        one, other = await two(stack, tmp_path, section)
        await one.ask(asking("first"))
        await told(one)
        forked = (*PROMPT[:140], *range(60))
        assert await other.ask(asking("second", forked)) == alone(asking("x", forked))
        assert 0 < other.cached_tokens("second") <= 128


async def test_another_tenant_finds_nothing(tmp_path: Path, section: KvSection) -> None:
    async with AsyncExitStack() as stack:
        one, other = await two(stack, tmp_path, section)
        await one.ask(asking("first"))
        await told(one)
        theirs = request("second", PROMPT, max_tokens=3, sampling=GREEDY, salt=b"\x01" * 16)
        await other.ask(theirs)
        assert other.cached_tokens("second") == 0


@pytest.mark.parametrize("change", [{"key": b"\x01" * 32}, {"namespace": "fedcba9876543210"}])
async def test_blocks_that_are_not_sealed_for_us_are_computed(
    tmp_path: Path, section: KvSection, change: dict
) -> None:
    async with AsyncExitStack() as stack:
        one, other = await two(stack, tmp_path, section, **change)
        other.memory._index._namespace = NAMESPACE  # so that it finds what it cannot use
        expected = await one.ask(asking("first"))
        await told(one)
        before = loads("bad") + loads("broken")
        assert await other.ask(asking("second")) == expected
        assert other.cached_tokens("second") == 0
        await until(lambda: loads("bad") + loads("broken") == before + 1)


async def test_a_core_that_is_gone_when_it_is_asked_costs_a_recompute(
    tmp_path: Path, section: KvSection
) -> None:
    async with AsyncExitStack() as stack:
        one, other = await two(stack, tmp_path, section)
        expected = await one.ask(asking("first"))
        await told(one)
        await one.server.stop(0)
        assert await other.ask(asking("second")) == expected
        assert other.cached_tokens("second") == 0


async def test_a_core_that_lost_its_cache_says_so_and_the_index_forgets_it(
    tmp_path: Path, section: KvSection
) -> None:
    async with AsyncExitStack() as stack:
        one, other = await two(stack, tmp_path, section)
        expected = await one.ask(asking("first"))
        await told(one)
        one.backend.flush_cache()
        hashes = block_hashes(root_hash(tokenizer_hash="t", salt=bytes(16)), PROMPT)
        assert await other.memory._index.lookup(hashes)
        assert await other.ask(asking("second")) == expected
        assert other.cached_tokens("second") == 0
        await asyncio.sleep(0.4)
        assert [h.node for h in await other.memory._index.lookup(hashes)] == []


async def test_requests_with_one_prefix_share_a_load(tmp_path: Path, section: KvSection) -> None:
    async with AsyncExitStack() as stack:
        one, other = await two(stack, tmp_path, section)
        expected = await one.ask(asking("first"))
        await told(one)
        before = telemetry.KV_LOADED_BYTES.labels(tier="peer")._value.get()
        answers = await asyncio.gather(*(other.ask(asking(f"r{n}")) for n in range(3)))
        assert answers == [expected] * 3
        taken = telemetry.KV_LOADED_BYTES.labels(tier="peer")._value.get() - before
        assert 0 < taken <= BLOCKS * 128


async def test_a_restarted_core_reads_its_prefixes_from_disk(tmp_path: Path) -> None:
    seals = BlockSeals((bytes(32),), NAMESPACE)

    def opened() -> DiskTier:
        return DiskTier(DiskConfig(tmp_path / "disk", 1 << 20), seals=seals, block_bytes=128)

    disk = opened()
    async with core("core-a", tmp_path, disk=disk) as one:
        expected = await one.ask(asking("first"))
    disk.close(5)
    disk = opened()
    async with core("core-a", tmp_path, disk=disk) as one:
        assert await one.ask(asking("second")) == expected
        assert one.cached_tokens("second") >= len(PROMPT) // 2
    disk.close(5)


async def test_blocks_spoiled_on_disk_are_computed_once_and_written_anew(tmp_path: Path) -> None:
    seals, section = BlockSeals((bytes(32),), NAMESPACE), KvSection(ways=(Way.FETCH,))
    hashes = block_hashes(root_hash(tokenizer_hash="t", salt=bytes(16)), PROMPT)[:BLOCKS]
    answers = []
    for spoiled in ((), (0, 5)):
        disk = DiskTier(DiskConfig(tmp_path / "disk", 1 << 20), seals=seals, block_bytes=128)
        for number in spoiled:
            path = tmp_path / "disk" / disk._files.name(hashes[number])
            path.write_bytes(bytes(path.stat().st_size))
        async with core("core-a", tmp_path, section, disk=disk) as one:
            answers.append(await one.ask(asking("again")))
            assert (one.cached_tokens("again") > 0) == bool(spoiled)
            await until(lambda: disk.counts().cached == BLOCKS)  # noqa: B023
        assert all(disk.read(one) for one in hashes)
        disk.close(5)
    assert answers[0] == answers[1]


async def call_of(folder: Path, one: Core, role: Role = Role.CORE):
    files = issue(ensure_ca(folder / "ca"), role, "x", ["127.0.0.1"], folder / f"x-{role}")
    channel = rpc.channel(one.info.address, files, Role.CORE)
    return channel, blocks_pb2_grpc.BlocksStub(channel).Fetch()


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"namespace": "other", "hashes": [bytes(16)]}, grpc.StatusCode.FAILED_PRECONDITION),
        ({"namespace": NAMESPACE, "hashes": []}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"namespace": NAMESPACE, "hashes": [b"short"]}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_what_cannot_be_wanted_is_refused(
    tmp_path: Path, wanted: dict, code: grpc.StatusCode
) -> None:
    async with core("core-a", tmp_path) as one:
        channel, call = await call_of(tmp_path, one)
        await call.write(blocks_pb2.Wanted(**wanted))
        assert await call.code() is code
        await channel.close()


async def test_an_edge_may_not_fetch(tmp_path: Path) -> None:
    async with core("core-a", tmp_path) as one:
        channel, call = await call_of(tmp_path, one, Role.EDGE)
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
        await channel.close()


async def test_the_giver_waits_for_the_taker_to_end_the_call(tmp_path: Path) -> None:
    """Credit may be on its way when the last piece is, and must find a call."""
    async with core("core-a", tmp_path) as one:
        await one.ask(asking("first"))
        hashes = block_hashes(root_hash(tokenizer_hash="t", salt=bytes(16)), PROMPT)
        channel, call = await call_of(tmp_path, one)
        wanted = blocks_pb2.Wanted(namespace=NAMESPACE, hashes=hashes[:2], credit_bytes=1 << 20)
        await call.write(wanted)
        assert [len((await call.read()).payload) for _ in range(3)] == [0, 128, 128]
        await asyncio.sleep(0.2)
        await call.write(blocks_pb2.Wanted(credit_bytes=2 << 20))
        assert not call.done()
        await channel.close()


async def test_nothing_is_sent_beyond_the_credit(tmp_path: Path) -> None:
    async with core("core-a", tmp_path) as one:
        await one.ask(asking("first"))
        hashes = block_hashes(root_hash(tokenizer_hash="t", salt=bytes(16)), PROMPT)
        channel, call = await call_of(tmp_path, one)
        await call.write(
            blocks_pb2.Wanted(namespace=NAMESPACE, hashes=hashes[:4], credit_bytes=2 * 128)
        )
        pieces = [await call.read() for _ in range(3)]
        assert [len(piece.payload) for piece in pieces] == [0, 128, 128]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await call.read()
        await channel.close()


async def test_credit_is_given_as_blocks_are_taken_in(
    tmp_path: Path, section: KvSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "WINDOW_BYTES_MIN", 2 * 128)
    async with AsyncExitStack() as stack:
        one, other = await two(stack, tmp_path, section)
        expected = await one.ask(asking("first"))
        await told(one)
        done, broken = loads("done") + loads("met"), loads("broken")
        assert await other.ask(asking("second")) == expected
        assert other.cached_tokens("second") >= len(PROMPT) // 2
        await until(lambda: loads("done") + loads("met") > done)
        assert loads("broken") == broken


async def test_what_the_disk_has_is_read_when_the_peer_that_has_more_is_gone(
    tmp_path: Path, section: KvSection
) -> None:
    seals = BlockSeals((bytes(32),), NAMESPACE)
    disk = DiskTier(DiskConfig(tmp_path / "disk", 1 << 20), seals=seals, block_bytes=128)
    async with core("core-b", tmp_path, disk=disk) as alone_once:
        await alone_once.ask(asking("first", PROMPT[:130]))
    async with AsyncExitStack() as stack:
        one, other = await two(stack, tmp_path, section, disk=disk)
        expected = await one.ask(asking("first"))
        await told(one)
        await one.server.stop(0)
        assert await other.ask(asking("second")) == expected
        assert 64 <= other.cached_tokens("second") <= 128
    disk.close(5)


async def test_a_flush_is_one_of_all_tiers_and_of_what_is_said_of_them(
    tmp_path: Path, section: KvSection
) -> None:
    seals = BlockSeals((bytes(32),), NAMESPACE)
    disk = DiskTier(DiskConfig(tmp_path / "disk", 1 << 20), seals=seals, block_bytes=128)
    async with AsyncExitStack() as stack:
        _, other = await two(stack, tmp_path, section, disk=disk)
        await other.ask(asking("first"))
        await until(lambda: disk.counts().cached == BLOCKS)
        assert other.memory.sketch
        other.backend.flush_cache()
        await until(lambda: not other.memory.sketch)
        assert disk.counts().cached == 0
        await other.ask(asking("second"))
        assert other.cached_tokens("second") == 0
    disk.close(5)
