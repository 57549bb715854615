"""Blocks on disk that are not what was written, the same ones for the same seed."""

from pathlib import Path
from random import Random

import pytest

from firstlight.infra.lab.disks import fill, free
from firstlight.infra.lab.fault_plan import How
from firstlight.infra.lab.spoil import corrupt
from firstlight.shared.errors import ConfigError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for number in range(5):
        (tmp_path / f"{number}.kv").write_bytes(bytes([number]) * 100)
    (tmp_path / "other").write_bytes(b"never touched")
    return tmp_path


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize(("how", "asked", "spoiled"), [("flip", 2, 2), ("truncate", 9, 5),
                                                       ("swap", 1, 2), ("swap", 3, 3)])  # fmt: skip
def test_as_many_blocks_as_were_asked_differ_and_nothing_else(
    directory: Path, how: How, asked: int, spoiled: int
) -> None:
    before = contents(directory)
    named = corrupt(directory, how, asked, Random(1))
    after = contents(directory)
    assert {name for name in before if before[name] != after.get(name)} == set(named)
    assert len(named) == spoiled
    assert after.keys() == before.keys()


def test_a_flip_is_one_bit(directory: Path) -> None:
    before = contents(directory)
    (name,) = corrupt(directory, "flip", 1, Random(3))
    changed = int.from_bytes(before[name]) ^ int.from_bytes(contents(directory)[name])
    assert changed.bit_count() == 1


def test_swapped_blocks_are_whole(directory: Path) -> None:
    before = contents(directory)
    corrupt(directory, "swap", 4, Random(2))
    assert sorted(contents(directory).values()) == sorted(before.values())


def test_the_seed_picks_the_same_blocks_again(directory: Path) -> None:
    first, again = (corrupt(directory, "truncate", 2, Random(5)) for _ in range(2))
    assert first == again


def test_a_disk_without_blocks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"corrupt: 0 blocks in .*, expected 2"):
        corrupt(tmp_path, "swap", 1, Random(1))


def test_room_that_was_never_taken_can_be_freed(tmp_path: Path) -> None:
    free(tmp_path)
    with pytest.raises(ConfigError, match="No such file"):
        fill(tmp_path / "missing")


@pytest.mark.parametrize("how", ["flip", "truncate"])
def test_a_block_of_which_nothing_is_left_is_not_picked(tmp_path: Path, how: How) -> None:
    (tmp_path / "empty.kv").touch()
    with pytest.raises(ConfigError, match=r"0 blocks in .*, expected 1"):
        corrupt(tmp_path, how, 1, Random(1))
    (tmp_path / "whole.kv").write_bytes(b"whole")
    assert corrupt(tmp_path, how, 2, Random(1)) == ["whole.kv"]
