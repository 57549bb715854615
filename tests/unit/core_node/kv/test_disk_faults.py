"""A disk that is full, read-only, broken or gone, and a process that is killed: misses only."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from time import sleep

import pytest
from disk_bed import (
    BLOCK_BYTES,
    Clock,
    block_of,
    files,
    hash_of,
    held,
    path_of,
    put,
    tier,
    wait_until,
    writers,
)

from firstlight.core_node.kv.disk import DiskTier
from firstlight.core_node.kv.disk_files import PARTIAL
from firstlight.shared.blocks import BlockCounts


class Disk:
    """While it has an error it takes half of each block and then fails with it."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.tries = 0

    def write(self, descriptor: int, view: memoryview) -> int:
        if len(view) != BLOCK_BYTES:
            return os.write(descriptor, view)
        self.tries += 1
        if self.error is not None:
            os.write(descriptor, view[: BLOCK_BYTES // 2])
            raise self.error
        return os.write(descriptor, view)


def resting(one: DiskTier) -> bool:
    return not one.wants(hash_of(10_000))


def offer_in_vain(one: DiskTier, number: int) -> None:
    assert one.offer(hash_of(number), block_of(number))
    wait_until(lambda: resting(one))
    assert not one.holds(hash_of(number))


@pytest.mark.parametrize(
    "error",
    [OSError(code, os.strerror(code)) for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)]
    + [OSError(errno.EIO, "Input/output error"), MemoryError(), ValueError("a bug")],
    ids=lambda error: type(error).__name__ + str(getattr(error, "errno", "")),
)
def test_while_the_disk_fails_nothing_is_lost_or_raised_and_then_it_goes_on(
    tmp_path: Path, error: Exception
) -> None:
    disk, clock = Disk(), Clock()
    with tier(tmp_path, blocks=4, clock=clock, write=disk.write) as one:
        put(one, 0, 1, 2)  # as many as the bound allows
        disk.error = error
        offer_in_vain(one, 3)
        assert not one.offer(hash_of(4), block_of(4))
        assert one.counts() == BlockCounts(free=1, used=0, cached=3, total=4)
        assert [one.read(hash_of(number)) for number in range(3)] == [block_of(n) for n in range(3)]
        assert not (tmp_path / PARTIAL).exists()
        assert len(writers()) == 1
        disk.error = None
        clock.now += 30.0
        put(one, 5)
        assert one.read(hash_of(5)) == block_of(5)
        assert held(one, range(6)) == [1, 2, 5]


def test_rests_grow_and_each_costs_one_try_and_all_of_them_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk, clock = Disk(), Clock()
    with tier(tmp_path, clock=clock, write=disk.write) as one:
        disk.error = OSError(errno.ENOSPC, "No space left on device")
        for tries, rest_s in enumerate((30, 60, 120, 240, 300, 300), 1):
            offer_in_vain(one, tries)
            clock.now += rest_s - 0.1
            assert resting(one)
            clock.now += 0.2
            assert not resting(one)
            assert disk.tries == tries
        assert len(caplog.records) == 1
        assert "No space left on device" in caplog.text
        disk.error = None
        put(one, 7, 8)
        assert len(caplog.records) == 2
        disk.error = OSError(errno.ENOSPC, "No space left on device")
        offer_in_vain(one, 9)
        clock.now += 30
        assert not resting(one)


def test_what_waits_when_the_disk_fails_is_let_go(tmp_path: Path) -> None:
    disk, clock = Disk(), Clock()
    disk.error = OSError(errno.EIO, "Input/output error")
    with tier(tmp_path, clock=clock, write=disk.write) as one:
        for number in range(20):
            one.offer(hash_of(number), block_of(number))
        wait_until(lambda: resting(one))
        disk.error = None
        clock.now += 30
        put(one, *range(10))


def test_a_directory_that_was_removed_is_made_anew_after_a_rest(tmp_path: Path) -> None:
    directory, clock = tmp_path / "kv", Clock()
    with tier(directory, clock=clock) as one:
        put(one, 1, 2)
        shutil.rmtree(directory)
        offer_in_vain(one, 3)
        assert one.read(hash_of(1)) is None
        assert not directory.exists()
        clock.now += 30
        put(one, 4)
        assert held(one, range(5)) == [4]
        assert one.read(hash_of(4)) == block_of(4)
        assert path_of(directory, 4).exists()


def test_a_directory_that_another_process_took_meanwhile_is_left_to_it(tmp_path: Path) -> None:
    directory, clock = tmp_path / "kv", Clock()
    with tier(directory, clock=clock) as one:
        put(one, 1)
        directory.rename(tmp_path / "away")
        (tmp_path / "away" / path_of(directory, 1).name).unlink()
        (tmp_path / "away").rmdir()
        other = files(directory)
        other.open()
        other.write(hash_of(2), block_of(2))
        offer_in_vain(one, 3)
        clock.now += 30
        offer_in_vain(one, 4)
        assert [path.name for path in directory.iterdir()] == [path_of(directory, 2).name]
        other.close()
        clock.now += 60
        put(one, 5)
        assert held(one, range(6)) == [2, 5]


def test_a_file_that_cannot_be_removed_stops_writes_and_not_reads(tmp_path: Path) -> None:
    clock = Clock()
    with tier(tmp_path, blocks=4, clock=clock) as one:
        put(one, 0, 1, 2)
        path_of(tmp_path, 0).unlink()
        path_of(tmp_path, 0).mkdir()  # which no unlink removes, whoever asks for it
        put(one, 3)
        wait_until(lambda: resting(one))
        assert one.counts() == BlockCounts(free=0, used=1, cached=3, total=4)
        assert one.read(hash_of(3)) == block_of(3)
        path_of(tmp_path, 0).rmdir()
        clock.now += 30
        put(one, 4)
        wait_until(lambda: one.counts() == BlockCounts(free=1, used=0, cached=3, total=4))


def test_a_process_out_of_descriptors_misses_and_keeps_the_block(tmp_path: Path) -> None:
    with tier(tmp_path) as one:
        put(one, 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            assert one.read(hash_of(1)) is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert one.read(hash_of(1)) == block_of(1)


_LIMITED = """
import resource, sys
from pathlib import Path
from disk_bed import *

with tier(Path(sys.argv[1])) as one:
    put(one, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK_BYTES // 2, BLOCK_BYTES // 2))
    assert one.offer(hash_of(2), block_of(2))
    wait_until(lambda: not one.wants(hash_of(3)))
    assert held(one, range(4)) == [1]
    assert one.read(hash_of(1)) == block_of(1)
print([path.name for path in Path(sys.argv[1]).iterdir()])
"""

_WRITER = """
import os, sys, threading
from pathlib import Path
from disk_bed import *

stop_at, count = int(sys.argv[2]), 0

def write(descriptor, view):
    global count
    count += 1
    if count != stop_at:
        return os.write(descriptor, view)
    os.write(descriptor, view[: len(view) // 2])
    print("now", flush=True)
    threading.Event().wait()

with tier(Path(sys.argv[1]), blocks=64, write=write) as one:
    number = 0
    while True:
        put(one, number)
        print(number, flush=True)
        number += 1
"""


def child(program: str, *arguments: object) -> "subprocess.Popen[str]":
    tests = Path(__file__).parents[3]
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.append({str(tests)!r})\n{program}"]
        + [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_limit_of_the_system_on_what_a_process_writes_is_a_full_disk(tmp_path: Path) -> None:
    with child(_LIMITED, tmp_path) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.strip() == str([path_of(tmp_path, 1).name])


@pytest.mark.parametrize("stop_at", [1, 2, 7, 8], ids=lambda at: f"at write {at}")
def test_a_process_killed_in_the_middle_of_a_block_leaves_those_before_it(
    tmp_path: Path, stop_at: int
) -> None:
    with child(_WRITER, tmp_path, stop_at) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "now":
            assert process.poll() is None
        process.kill()
    assert (tmp_path / PARTIAL).exists()
    whole = list(range((stop_at - 1) // 2))  # two writes a block: its head and itself
    with tier(tmp_path, blocks=64) as one:
        assert held(one, range(10)) == whole
        assert [one.read(hash_of(number)) for number in whole] == [block_of(n) for n in whole]
        wait_until(lambda: one.counts().used == 0)
        assert not (tmp_path / PARTIAL).exists()


def test_a_process_killed_at_any_time_leaves_whole_blocks_and_no_lock(tmp_path: Path) -> None:
    rng = Random(2)
    found = 0
    for _ in range(4):
        with child(_WRITER, tmp_path, 0) as process:
            assert process.stdout is not None
            process.stdout.readline()
            sleep(rng.random() * 0.05)
            process.kill()
        with tier(tmp_path, blocks=64) as one:
            numbers = held(one, range(20_000))
            for number in numbers:
                assert one.read(hash_of(number)) == block_of(number)
            found += len(numbers)
            one.clear()
    assert found > 0
