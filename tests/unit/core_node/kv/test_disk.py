"""The disk tier: what is offered is found again, within the bound, after a restart too."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random

import psutil
import pytest
from disk_bed import (
    BLOCK_BYTES,
    FILE_BYTES,
    KEY,
    NAMESPACE,
    OTHER_KEY,
    OTHER_NAMESPACE,
    SEALS,
    block_of,
    hash_of,
    held,
    path_of,
    put,
    tier,
    wait_until,
    writers,
)

from firstlight.core_node.kv import disk
from firstlight.core_node.kv.disk import DiskConfig, DiskTier
from firstlight.core_node.kv.seal import BlockSeals
from firstlight.shared.blocks import BlockCounts
from firstlight.shared.errors import ConfigError
from firstlight.shared.telemetry import REGISTRY


def counted(fate: str) -> float:
    labels = {"tier": "disk", "fate": fate}
    return REGISTRY.get_sample_value("firstlight_kv_tier_blocks_total", labels) or 0.0


def hashes(numbers: Sequence[int]) -> list[bytes]:
    return [hash_of(number) for number in numbers]


class Gate:
    """A disk that takes a block only when it is told to."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)

    def write(self, descriptor: int, view: memoryview) -> int:
        if len(view) == BLOCK_BYTES:
            self.reached.release()
            assert self.go_on.acquire(timeout=30)
        return os.write(descriptor, view)


def test_what_is_offered_is_read_back_bit_equal(tmp_path: Path) -> None:
    with tier(tmp_path) as one:
        assert one.read(hash_of(1)) is None
        put(one, 1, 2)
        assert one.read(hash_of(1)) == block_of(1)
        assert one.read(hash_of(2)) == block_of(2)
        assert one.read(hash_of(3)) is None


def test_any_kind_of_buffer_may_be_offered(tmp_path: Path) -> None:
    with tier(tmp_path) as one:
        one.offer(hash_of(1), bytearray(block_of(1)))
        one.offer(hash_of(2), memoryview(block_of(2)).cast("I"))
        wait_until(lambda: one.leading(hashes([1, 2])) == 2)
        assert one.read(hash_of(2)) == block_of(2)


def test_the_leading_blocks_of_a_chain_end_at_the_first_that_is_missing(tmp_path: Path) -> None:
    with tier(tmp_path) as one:
        put(one, 0, 1, 3)
        assert one.leading(hashes([0, 1, 2, 3])) == 2
        assert one.leading(hashes([3, 0])) == 2
        assert one.leading(hashes([2, 3])) == 0
        assert one.leading([]) == 0


def test_a_block_that_is_held_or_waits_is_refused_and_counted(tmp_path: Path) -> None:
    gate = Gate()
    with tier(tmp_path, write=gate.write) as one:
        before = counted("held")
        assert one.offer(hash_of(1), block_of(1))
        assert gate.reached.acquire(timeout=30)
        assert one.offer(hash_of(2), block_of(2))
        assert not one.offer(hash_of(1), block_of(1))  # under way
        assert not one.wants(hash_of(2))  # waits
        gate.go_on.release(2)
        wait_until(lambda: one.leading(hashes([1, 2])) == 2)
        assert not one.offer(hash_of(2), block_of(2))
        assert counted("held") == before + 2  # to ask costs nothing


def test_a_full_queue_refuses_counts_and_never_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "WAITING_BYTES_MAX", 3 * BLOCK_BYTES)
    gate = Gate()
    with tier(tmp_path, write=gate.write) as one:
        before = counted("full")
        one.offer(hash_of(0), block_of(0))
        assert gate.reached.acquire(timeout=30)
        assert [one.offer(hash_of(n), block_of(n)) for n in (1, 2, 3, 4)] == [True] * 3 + [False]
        assert not one.wants(hash_of(4))
        assert counted("full") == before + 1
        gate.go_on.release(4)
        wait_until(lambda: one.leading(hashes([0, 1, 2, 3])) == 4)
        assert one.wants(hash_of(4))


def test_one_block_may_wait_however_large_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "WAITING_BYTES_MAX", 1)
    with tier(tmp_path) as one:
        put(one, 1)


def test_a_block_of_another_size_is_a_bug_of_the_caller(tmp_path: Path) -> None:
    with tier(tmp_path) as one, pytest.raises(AssertionError):
        one.offer(hash_of(1), block_of(1)[:-1])


def test_the_least_recently_used_block_makes_room(tmp_path: Path) -> None:
    with tier(tmp_path, blocks=5) as one:
        before = counted("evicted")
        put(one, 0, 1, 2, 3)
        one.read(hash_of(0))
        put(one, 4)
        wait_until(lambda: one.counts() == BlockCounts(free=1, used=0, cached=4, total=5))
        assert held(one, range(5)) == [0, 2, 3, 4]
        assert not path_of(tmp_path, 1).exists()
        assert counted("evicted") == before + 1


def test_the_end_of_a_chain_goes_before_its_beginning(tmp_path: Path) -> None:
    with tier(tmp_path, blocks=5) as one:
        put(one, 0, 1, 2, 3)
        one.touch(hashes([0, 1, 2, 3]))
        put(one, 4, 5)
        assert held(one, range(6)) == [0, 1, 4, 5]


def test_a_bad_block_is_a_miss_counted_removed_and_may_be_written_again(tmp_path: Path) -> None:
    with tier(tmp_path) as one:
        put(one, 1)
        before = counted("bad")
        path_of(tmp_path, 1).write_bytes(bytes(FILE_BYTES))
        assert one.read(hash_of(1)) is None
        assert not one.holds(hash_of(1))
        wait_until(lambda: one.counts() == BlockCounts(free=16, used=0, cached=0, total=16))
        assert not path_of(tmp_path, 1).exists()
        assert counted("bad") == before + 1
        put(one, 1)
        assert one.read(hash_of(1)) == block_of(1)


def test_bad_blocks_are_said_at_a_rate_that_falls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tier(tmp_path, blocks=32) as one:
        put(one, *range(20))
        for number in range(20):
            path_of(tmp_path, number).write_bytes(b"")
            assert one.read(hash_of(number)) is None
    assert [record.args[0] for record in caplog.records if record.args] == [1, 2, 4, 8, 16]


def test_a_file_that_somebody_removed_is_a_miss_and_forgotten(tmp_path: Path) -> None:
    with tier(tmp_path) as one:
        put(one, 1)
        path_of(tmp_path, 1).unlink()
        assert one.read(hash_of(1)) is None
        assert not one.holds(hash_of(1))
        put(one, 1)


def test_a_restart_finds_all_blocks_in_their_order_of_use(tmp_path: Path) -> None:
    with tier(tmp_path, blocks=9) as one:
        put(one, *range(8))
    for number in range(8):
        os.utime(path_of(tmp_path, number), (1000 + number, 1000 + number))
    with tier(tmp_path, blocks=9) as one:
        assert one.counts() == BlockCounts(free=1, used=0, cached=8, total=9)
        assert one.read(hash_of(0)) == block_of(0)
    with tier(tmp_path, blocks=9) as one:  # 0 was used last
        assert held(one, range(8)) == list(range(8))
        put(one, 8, 9)
        assert held(one, range(10)) == [0, 3, 4, 5, 6, 7, 8, 9]


def test_a_restart_with_a_smaller_bound_keeps_what_was_used_last(tmp_path: Path) -> None:
    with tier(tmp_path, blocks=9) as one:
        put(one, *range(8))
    for number in range(8):
        os.utime(path_of(tmp_path, number), (1000 + number, 1000 + number))
    with tier(tmp_path, blocks=4) as one:
        assert held(one, range(8)) == [5, 6, 7]
        wait_until(lambda: one.counts() == BlockCounts(free=1, used=0, cached=3, total=4))
        assert len(list(tmp_path.iterdir())) == 3


def test_after_a_change_of_key_blocks_of_the_previous_one_are_read(tmp_path: Path) -> None:
    with tier(tmp_path) as one:
        put(one, 1)
    with tier(tmp_path, seals=BlockSeals((OTHER_KEY, KEY), NAMESPACE)) as one:
        assert one.read(hash_of(1)) == block_of(1)
        put(one, 2)
    with tier(tmp_path, seals=BlockSeals((OTHER_KEY,), NAMESPACE)) as one:
        assert one.read(hash_of(1)) is None
        assert one.read(hash_of(2)) == block_of(2)


def test_blocks_of_another_namespace_are_not_found_yet_survive_until_room_is_needed(
    tmp_path: Path,
) -> None:
    other = BlockSeals((KEY,), OTHER_NAMESPACE)
    with tier(tmp_path, blocks=5, seals=other) as one:
        put(one, 0, 1, 2)
    with tier(tmp_path, blocks=5) as one:
        assert one.counts() == BlockCounts(free=2, used=3, cached=0, total=5)
        assert held(one, range(3)) == []
        put(one, 5, 6)
    with tier(tmp_path, blocks=5, seals=other) as one:
        assert len(held(one, range(3))) == 2
    with tier(tmp_path, blocks=5) as one:
        put(one, 7, 8)
        assert held(one, range(9)) == [5, 6, 7, 8]
        wait_until(lambda: one.counts() == BlockCounts(free=1, used=0, cached=4, total=5))


def test_files_of_others_are_left_alone_and_remains_are_removed(tmp_path: Path) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_bytes(bytes(100 * FILE_BYTES))
    (tmp_path / "writing.part").write_bytes(b"half")
    path_of(tmp_path, 1).write_bytes(b"cut short")
    with tier(tmp_path, blocks=4) as one:
        assert not one.holds(hash_of(1))
        put(one, 1, 2, 3, 4)
        wait_until(lambda: one.counts() == BlockCounts(free=1, used=0, cached=3, total=4))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {foreign.name} | {path_of(tmp_path, number).name for number in (2, 3, 4)}


def test_a_flush_forgets_all_of_this_namespace_over_a_restart_too(tmp_path: Path) -> None:
    with tier(tmp_path, seals=BlockSeals((KEY,), OTHER_NAMESPACE)) as one:
        put(one, 1)
    with tier(tmp_path) as one:
        put(one, 1, 2)
        one.clear()
        assert held(one, range(3)) == []
        wait_until(lambda: one.counts() == BlockCounts(free=15, used=1, cached=0, total=16))
    with tier(tmp_path) as one:
        assert held(one, range(3)) == []
    assert [path.name for path in tmp_path.iterdir()] == [
        path_of(tmp_path, 1, OTHER_NAMESPACE).name
    ]


def test_a_flush_takes_what_waits_and_the_block_under_way_with_it(tmp_path: Path) -> None:
    gate = Gate()
    with tier(tmp_path, write=gate.write) as one:
        one.offer(hash_of(1), block_of(1))
        one.offer(hash_of(2), block_of(2))
        assert gate.reached.acquire(timeout=30)
        one.clear()
        assert one.offer(hash_of(3), block_of(3))
        gate.go_on.release(2)
        wait_until(lambda: one.holds(hash_of(3)))
        wait_until(lambda: one.counts().used == 0)
        assert held(one, range(4)) == [3]
        assert [path.name for path in tmp_path.iterdir()] == [path_of(tmp_path, 3).name]


def test_the_bound_is_kept_under_random_load(tmp_path: Path) -> None:
    rng, blocks = Random(4), 7
    (tmp_path / f"{OTHER_NAMESPACE}-{'0' * 32}.kv").write_bytes(bytes(3 * FILE_BYTES - 1))
    largest = 0

    def write(descriptor: int, view: memoryview) -> int:
        nonlocal largest
        written = os.write(descriptor, view)
        sizes = [path.stat().st_size for path in tmp_path.iterdir()]
        largest = max(largest, sum(sizes))
        return written

    with tier(tmp_path, blocks=blocks, write=write) as one:
        for _ in range(1500):
            number = rng.randrange(20)
            if rng.random() < 0.4:
                assert one.read(hash_of(number)) in (None, block_of(number))
            else:
                one.offer(hash_of(number), block_of(number))
            if rng.random() < 0.01:
                one.clear()
            counts = one.counts()
            assert counts.free + counts.used + counts.cached == counts.total == blocks
            assert min(counts.free, counts.used, counts.cached) >= 0
    assert 4 * FILE_BYTES < largest <= blocks * FILE_BYTES


def test_the_end_writes_what_waits(tmp_path: Path) -> None:
    with tier(tmp_path, blocks=64) as one:
        taken = [number for number in range(50) if one.offer(hash_of(number), block_of(number))]
    with tier(tmp_path, blocks=64) as one:
        assert taken
        assert held(one, range(50)) == taken


def test_the_end_does_not_wait_for_a_disk_that_hangs(tmp_path: Path) -> None:
    gate = Gate()
    with tier(tmp_path, write=gate.write) as one:
        one.offer(hash_of(1), block_of(1))
        one.offer(hash_of(2), block_of(2))
        assert gate.reached.acquire(timeout=30)
        one.close(0.0)
        assert writers()
        gate.go_on.release(2)
    wait_until(lambda: not writers())
    with tier(tmp_path) as one:
        assert held(one, range(3)) == [1]


def test_after_the_end_nothing_is_held_read_or_taken(tmp_path: Path) -> None:
    with tier(tmp_path) as one:
        put(one, 1)
        one.close(10.0)
        assert not one.holds(hash_of(1))
        assert one.read(hash_of(1)) is None
        assert not one.wants(hash_of(2))
        assert not one.offer(hash_of(2), block_of(2))


def test_a_second_tier_over_one_directory_is_refused(tmp_path: Path) -> None:
    with tier(tmp_path) as one:
        put(one, 1)
        threads = len(writers())
        with pytest.raises(ConfigError, match="another process uses it"), tier(tmp_path):
            pass
        assert len(writers()) == threads
        assert one.read(hash_of(1)) == block_of(1)


def test_a_bound_that_holds_no_two_blocks_is_refused_with_what_is_needed(tmp_path: Path) -> None:
    config = DiskConfig(tmp_path / "kv", 2 * FILE_BYTES - 1)
    with pytest.raises(ConfigError, match=f"expected at least {2 * FILE_BYTES}"):
        DiskTier(config, seals=SEALS, block_bytes=BLOCK_BYTES)
    assert not (tmp_path / "kv").exists()


def test_a_bound_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="bytes_max is 0, not at least 1"):
        DiskConfig(bytes_max=0)


def test_the_smallest_tier_keeps_one_block(tmp_path: Path) -> None:
    with tier(tmp_path, blocks=2) as one:
        put(one, 1, 2)
        assert held(one, range(3)) == [2]


def test_eight_threads_read_and_offer_and_each_gets_its_block_or_none(tmp_path: Path) -> None:
    wrong: list[int] = []
    hits = [0] * 8

    def work(seed: int, one: DiskTier) -> None:
        rng = Random(seed)
        for _ in range(400):
            number = rng.randrange(24)
            if rng.random() < 0.5 and one.wants(hash_of(number)):
                one.offer(hash_of(number), block_of(number))
            block = one.read(hash_of(number))
            hits[seed] += block is not None
            if block not in (None, block_of(number)):
                wrong.append(number)
            if rng.random() < 0.005:
                one.clear()

    before = counted("bad")
    with tier(tmp_path, blocks=12) as one:
        for number in range(8):  # so that some are there however slow the writer is
            one.offer(hash_of(number), block_of(number))
        wait_until(lambda: one.leading(hashes(range(8))) == 8)
        threads = [threading.Thread(target=work, args=(seed, one)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert sum(hits) > 0
    with tier(tmp_path, blocks=12) as one:
        there = held(one, range(24))
        assert len(there) == one.counts().cached == len(list(tmp_path.iterdir()))
        assert [one.read(hash_of(number)) for number in there] == [block_of(n) for n in there]
    assert counted("bad") == before


def test_descriptors_and_threads_are_back_at_the_baseline_after_the_end(tmp_path: Path) -> None:
    process = psutil.Process()

    def use() -> None:
        with tier(tmp_path, blocks=8) as one:
            for number in range(12):
                one.offer(hash_of(number), block_of(number))
            wait_until(lambda: one.holds(hash_of(11)))
            path_of(tmp_path, 11).write_bytes(b"")
            for number in range(12):
                one.read(hash_of(number))
            with pytest.raises(ConfigError), tier(tmp_path):
                pass

    use()
    before = process.num_fds()
    for _ in range(5):
        use()
    assert process.num_fds() == before
    assert writers() == []
