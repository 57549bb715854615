"""Blocks, seals and disk tiers for tests, with blocks so small that thousands of them are quick."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from time import sleep

from firstlight.core_node.kv.disk import DiskConfig, DiskTier
from firstlight.core_node.kv.disk_files import BlockFiles
from firstlight.core_node.kv.seal import BlockSeals

NAMESPACE, OTHER_NAMESPACE = "0123456789abcdef", "fedcba9876543210"
KEY, OTHER_KEY = bytes(32), b"\x01" * 32
SEALS = BlockSeals((KEY,), NAMESPACE)
BLOCK_BYTES = 256
FILE_BYTES = 16 + 16 + BLOCK_BYTES


def hash_of(number: int) -> bytes:
    return blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


def block_of(number: int, size: int = BLOCK_BYTES) -> bytes:
    """Bytes that differ from block to block and from place to place."""
    seed = blake2b(number.to_bytes(8, "little"), digest_size=32, person=b"block").digest()
    return b"".join(
        blake2b(seed + at.to_bytes(8, "little")).digest() for at in range(-(-size // 64))
    )[:size]


def files(directory: Path, seals: BlockSeals = SEALS, size: int = BLOCK_BYTES) -> BlockFiles:
    return BlockFiles(directory, seals, size)


def path_of(directory: Path, number: int, namespace: str = NAMESPACE) -> Path:
    return directory / f"{namespace}-{hash_of(number).hex()}.kv"


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def tier(
    directory: Path,
    blocks: int = 16,
    *,
    seals: BlockSeals = SEALS,
    clock: Clock | None = None,
    write: Callable[[int, memoryview], int] | None = None,
) -> Iterator[DiskTier]:
    """A tier with room for `blocks` files, closed at the end."""
    one = DiskTier(
        DiskConfig(directory, blocks * FILE_BYTES),
        seals=seals,
        block_bytes=BLOCK_BYTES,
        **({"clock": clock} if clock else {}),
        **({"write": write} if write else {}),
    )
    try:
        yield one
    finally:
        one.close(10.0)


def put(one: DiskTier, *numbers: int) -> None:
    """Offer blocks and wait until each is held."""
    for number in numbers:
        assert one.offer(hash_of(number), block_of(number)), number
        wait_until(lambda number=number: one.holds(hash_of(number)))  # type: ignore[misc]


def held(one: DiskTier, numbers: range) -> list[int]:
    return [number for number in numbers if one.holds(hash_of(number))]


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    for _ in range(int(timeout_s / 0.002)):
        if condition():
            return
        sleep(0.002)
    raise AssertionError("it did not become true")


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kv-disk"]
