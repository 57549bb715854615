"""Trees of processes, and whose CPU time it was."""

import os
from pathlib import Path

import pytest

from firstlight.infra.bench.engine.processes import (
    Reading,
    foreign_share,
    memory_mb,
    read,
    tree,
)


def write(proc: Path, pid: int, parent: int, ticks: tuple[int, int]) -> None:
    (proc / str(pid)).mkdir(parents=True)
    fields = ["S", str(parent), *["0"] * 9, *map(str, ticks), "9", "9"]
    (proc / str(pid) / "stat").write_text(f"{pid} (a) (name) {' '.join(fields)}\n")


def test_a_tree_is_the_roots_and_all_that_descend_from_them() -> None:
    assert tree([2], {1: 0, 2: 1, 3: 2, 4: 3, 5: 1}) == {2, 3, 4}


def test_what_none_of_ours_computed_was_foreign() -> None:
    before = Reading(busy=100, total=1000, by_process={1: 10, 2: 20})
    after = Reading(busy=160, total=1200, by_process={1: 25, 2: 30, 3: 5})
    assert foreign_share(before, after) == pytest.approx(30 / 200)


def test_rounding_of_ticks_makes_no_negative_share() -> None:
    assert foreign_share(Reading(0, 0, {1: 0}), Reading(9, 20, {1: 10})) == 0
    assert foreign_share(Reading(0, 5, {}), Reading(0, 5, {})) is None


def test_a_reading_sums_what_is_busy_and_what_is_ours(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  1 2 4 100 200 8 16 32 64 64\ncpu0 …\n")
    write(tmp_path, 7, 1, (3, 4))
    write(tmp_path, 8, 7, (5, 6))
    write(tmp_path, 9, 1, (50, 60))
    write(tmp_path, os.getpid(), 1, (1, 1))
    found = read([7], tmp_path)
    assert found == Reading(63, 363, {7: 7, 8: 11, os.getpid(): 2})


def test_memory_is_of_the_whole_tree(tmp_path: Path) -> None:
    for pid, parent, kb in ((7, 1, 1000), (8, 7, 500), (9, 1, 9000)):
        write(tmp_path, pid, parent, (0, 0))
        (tmp_path / str(pid) / "status").write_text(f"Name: x\nVmRSS:\t {kb} kB\n")
        (tmp_path / str(pid) / "smaps_rollup").write_text(f"Rss: 1 kB\nPss:  {kb - 100} kB\n")
    assert memory_mb([7], tmp_path) == {"rss": 1.5, "pss": 1.3}


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert read([1], missing) is None
    assert memory_mb([1], missing) == {"rss": None, "pss": None}
