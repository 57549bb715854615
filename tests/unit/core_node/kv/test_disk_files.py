"""The files of sealed blocks: bit-equal, or not there."""

import os
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
    files,
    hash_of,
    path_of,
)

from firstlight.core_node.kv.disk_files import PARTIAL, BlockFiles
from firstlight.core_node.kv.disk_index import Found
from firstlight.core_node.kv.seal import PIECE_BYTES_MAX, BlockSeals
from firstlight.shared.errors import ConfigError


@pytest.mark.parametrize(
    "size", [1, 256, 737_280, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, 5 * PIECE_BYTES_MAX + 17]
)
def test_a_block_of_any_size_is_read_back_bit_equal(tmp_path: Path, size: int) -> None:
    some = files(tmp_path, size=size)
    some.open()
    some.write(hash_of(1), bytearray(block_of(1, size)))
    assert some.read(hash_of(1)) == block_of(1, size)
    assert path_of(tmp_path, 1).stat().st_size == some.file_bytes
    some.close()


def test_a_flip_in_any_piece_of_a_large_block_is_seen(tmp_path: Path) -> None:
    size = 2 * PIECE_BYTES_MAX + 5
    some = files(tmp_path, size=size)
    some.open()
    some.write(hash_of(1), block_of(1, size))
    path = path_of(tmp_path, 1)
    whole = path.read_bytes()
    for at in (0, 16, 32, 48, 64, 64 + PIECE_BYTES_MAX, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert some.read(hash_of(1)) is None, at
    path.write_bytes(whole)
    assert some.read(hash_of(1)) == block_of(1, size)
    some.close()


def _mutate(rng: Random, whole: bytes, elsewhere: bytes) -> bytes:
    kind = rng.randrange(6)
    wrong = bytearray(whole)
    if kind == 0:
        wrong[rng.randrange(len(wrong))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del wrong[rng.randrange(len(wrong)) :]
    elif kind == 2:
        wrong += rng.randbytes(rng.randrange(1, 600))
    elif kind == 3:  # a part of another block in its place
        at, end = sorted(rng.sample(range(16, len(wrong) + 1), 2))
        wrong[at:end] = elsewhere[at:end]
    elif kind == 4:  # two parts swapped
        at = rng.randrange(1, len(wrong))
        wrong = wrong[at:] + wrong[:at]
    else:  # zeros, as after a power loss
        at = rng.randrange(len(wrong) - 1)
        wrong[at:] = bytes(len(wrong) - at)
    return bytes(wrong)


def test_ten_thousand_mutations_of_a_file_are_all_misses(tmp_path: Path) -> None:
    rng = Random(6)
    some = files(tmp_path)
    some.open()
    for number in (1, 2):
        some.write(hash_of(number), block_of(number))
    path = path_of(tmp_path, 1)
    whole, elsewhere = path.read_bytes(), path_of(tmp_path, 2).read_bytes()
    seen = 0
    with path.open("r+b", buffering=0) as file:  # in place, which is quicker
        while seen < 10_000:
            wrong = _mutate(rng, whole, elsewhere)
            if wrong != whole:
                os.pwrite(file.fileno(), wrong, 0)
                file.truncate(len(wrong))
                assert some.read(hash_of(1)) is None, wrong.hex()
                seen += 1
        os.pwrite(file.fileno(), whole, 0)
        file.truncate(len(whole))
    assert some.read(hash_of(1)) == block_of(1)
    some.close()


def test_two_files_swapped_are_two_misses(tmp_path: Path) -> None:
    some = files(tmp_path)
    some.open()
    some.write(hash_of(1), block_of(1))
    some.write(hash_of(2), block_of(2))
    one, two = path_of(tmp_path, 1), path_of(tmp_path, 2)
    aside = one.rename(tmp_path / "aside")
    two.rename(one)
    aside.rename(two)
    assert some.read(hash_of(1)) is None
    assert some.read(hash_of(2)) is None
    some.close()


@pytest.mark.parametrize(
    ("seals", "found"),
    [
        (BlockSeals((KEY,), OTHER_NAMESPACE), False),
        (BlockSeals((OTHER_KEY,), NAMESPACE), False),
        (BlockSeals((OTHER_KEY, KEY), NAMESPACE), True),
    ],
    ids=["another namespace", "another key", "the key before the current one"],
)
def test_a_block_is_believed_by_those_who_have_its_namespace_and_key(
    tmp_path: Path, seals: BlockSeals, found: bool
) -> None:
    written = files(tmp_path)
    written.open()
    written.write(hash_of(1), block_of(1))
    written.close()
    path_of(tmp_path, 1).rename(path_of(tmp_path, 1, seals.namespace))
    some = files(tmp_path, seals)
    some.open()
    assert some.read(hash_of(1)) == (block_of(1) if found else None)
    some.close()


def test_what_is_no_regular_file_is_not_followed(tmp_path: Path) -> None:
    some = files(tmp_path)
    some.open()
    some.write(hash_of(1), block_of(1))
    path = path_of(tmp_path, 1)
    path.symlink_to(path.rename(tmp_path / "elsewhere"))
    with pytest.raises(OSError, match=path.name):
        some.read(hash_of(1))
    some.close()
    assert some.open() == Found()
    some.close()


def test_a_look_tells_ours_others_and_remains_apart_and_knows_the_order_of_use(
    tmp_path: Path,
) -> None:
    some = files(tmp_path)
    some.open()
    for number in (1, 2, 3):
        some.write(hash_of(number), block_of(number))
    for number, mtime in ((1, 300), (2, 100), (3, 200)):
        os.utime(path_of(tmp_path, number), (mtime, mtime))
    path_of(tmp_path, 4).write_bytes(b"cut short")
    (tmp_path / PARTIAL).write_bytes(bytes(FILE_BYTES + 1))
    for number, size, mtime in ((5, 2 * FILE_BYTES + 1, 50), (6, 0, 40)):
        other = path_of(tmp_path, number, OTHER_NAMESPACE)
        other.write_bytes(bytes(size))
        os.utime(other, (mtime, mtime))
    for foreign in ("notes.txt", f"{NAMESPACE}-xyz.kv", f".{path_of(tmp_path, 1).name}"):
        (tmp_path / foreign).write_bytes(bytes(9 * FILE_BYTES))
    path_of(tmp_path, 7).mkdir()
    some.close()
    found = some.open()
    some.close()
    assert found.blocks == tuple(path_of(tmp_path, number).name for number in (2, 3, 1))
    assert found.others == (
        (path_of(tmp_path, 6, OTHER_NAMESPACE).name, 1),
        (path_of(tmp_path, 5, OTHER_NAMESPACE).name, 3),
    )
    assert set(found.spoiled) == {(path_of(tmp_path, 4).name, 1), (PARTIAL, 2)}


def test_a_read_renews_an_old_time_and_leaves_a_young_one(tmp_path: Path) -> None:
    some = files(tmp_path)
    some.open()
    some.write(hash_of(1), block_of(1))
    path = path_of(tmp_path, 1)
    now = path.stat().st_mtime
    os.utime(path, (now - 5, now - 5))
    some.read(hash_of(1))
    assert path.stat().st_mtime == pytest.approx(now - 5, abs=1)
    os.utime(path, (1000, 1000))
    some.read(hash_of(1))
    assert path.stat().st_mtime >= now - 1
    some.close()


def test_directory_and_files_are_for_this_user_alone(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "kv"
    some = files(directory)
    some.open()
    some.write(hash_of(1), block_of(1))
    some.close()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert path_of(directory, 1).stat().st_mode & 0o777 == 0o600


def test_one_directory_is_used_by_one_at_a_time(tmp_path: Path) -> None:
    first, second = files(tmp_path), files(tmp_path)
    first.open()
    with pytest.raises(ConfigError, match=f"{tmp_path}: another process uses it"):
        second.open()
    first.close()
    second.open()
    second.close()


@pytest.mark.parametrize("name", ["a file/kv", "a file", "null\0byte"])
def test_a_directory_that_cannot_be_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(ConfigError, match="KV on disk: cannot use "):
        files(tmp_path / name).open()


def test_a_directory_in_the_place_of_the_old_one_is_seen_and_taken(tmp_path: Path) -> None:
    directory = tmp_path / "kv"
    some = files(directory)
    some.open()
    some.write(hash_of(1), block_of(1))
    assert not some.replaced()
    descriptors = psutil.Process().num_fds()
    directory.rename(tmp_path / "away")
    assert some.replaced()
    assert some.open() == Found()
    assert psutil.Process().num_fds() == descriptors
    assert not some.replaced()
    some.write(hash_of(2), block_of(2))
    assert path_of(directory, 2).exists()
    with pytest.raises(FileNotFoundError):
        some.read(hash_of(1))
    old = files(tmp_path / "away")
    assert old.open().blocks == (path_of(directory, 1).name,)  # its lock is free again
    old.close()
    some.close()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fails(descriptor: int, view: memoryview) -> int:
        if len(view) == BLOCK_BYTES:
            raise OSError(28, "No space left on device")
        return os.write(descriptor, view)

    some = BlockFiles(tmp_path, SEALS, BLOCK_BYTES, write=fails)
    some.open()
    with pytest.raises(OSError, match="No space left"):
        some.write(hash_of(1), block_of(1))
    assert list(tmp_path.iterdir()) == []
    some.close()


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_them_all(tmp_path: Path) -> None:
    some = BlockFiles(tmp_path, SEALS, BLOCK_BYTES, write=lambda to, view: os.write(to, view[:7]))
    some.open()
    some.write(hash_of(1), block_of(1))
    assert some.read(hash_of(1)) == block_of(1)
    some.close()


def test_a_read_after_the_end_fails_as_on_a_broken_disk(tmp_path: Path) -> None:
    some = files(tmp_path)
    some.open()
    some.write(hash_of(1), block_of(1))
    some.close()
    some.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        some.read(hash_of(1))
