"""The disk tier of a core's KV cache: blocks that a restart does not lose.

Reads are the caller's, on any thread that may block. Everything that changes the directory is done
by one thread, which blocks are handed to through a short queue: a caller that offers a block never
waits for the disk, and a disk that is too slow, full or broken costs hits, never a request.

    offer ─► waiting (bounded by bytes) ─► writer: remove what is doomed, write, rename ─► held

No system call is made under the lock that callers take, so a disk that hangs hangs no caller of
anything but `read`.
"""

import errno
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from firstlight.core_node.kv.disk_files import BlockFiles
from firstlight.core_node.kv.disk_index import DiskIndex, Rest
from firstlight.core_node.kv.seal import BlockSeals
from firstlight.shared import telemetry
from firstlight.shared.blocks import BlockCounts, Buffer
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError

log = logging.getLogger(__name__)

WAITING_BYTES_MAX = 64 << 20
"""Blocks that wait for the writer; one may, however large it is."""
BLOCKS_MIN = 2
"""One to keep, and room for the one under way."""
LAST_WRITE_S = 1.0
"""How long the end waits for the block under way, after what waited was let go."""


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """Where blocks are kept over a restart, and how many."""

    directory: Path | None = None
    """On a local disk, of one core alone, made if it is missing; null: no disk tier."""
    bytes_max: int = 1 << 30
    """Of all blocks in it, those of earlier models and the one under way included."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a bound that is none."""
        if self.bytes_max < 1:
            raise ConfigError(f"bytes_max is {self.bytes_max}, not at least 1")


class Fate(StrEnum):
    """What became of a block; a label of `telemetry.KV_TIER_BLOCKS`."""

    READ = "read"
    WRITTEN = "written"
    EVICTED = "evicted"
    BAD = "bad"
    """It lay there and was not what had been written."""
    FAILED = "failed"
    """The disk refused to read or to write it, or to remove one to make room."""
    HELD = "held"
    """Offered, and there already, or soon; as the two below not taken."""
    FULL = "full"
    """Too many wait for the writer."""
    RESTING = "resting"
    """The disk failed a while ago."""


class DiskTier:
    """One bounded directory of sealed blocks. All methods may be called from any thread."""

    def __init__(
        self,
        config: DiskConfig,
        *,
        seals: BlockSeals,
        block_bytes: int,
        clock: Callable[[], float] = monotonic_s,
        write: Callable[[int, memoryview], int] = os.write,
    ) -> None:
        """Open and lock the directory, find what an earlier process left, start the writer.

        Blocking. Raises `ConfigError` for a directory that cannot be used or that another process
        uses, and for a bound that does not hold two blocks.
        """
        assert config.directory is not None
        self._files = BlockFiles(config.directory, seals, block_bytes, write=write)
        total = config.bytes_max // self._files.file_bytes
        if total < BLOCKS_MIN:
            raise ConfigError(
                f"KV on disk: bytes_max is {config.bytes_max}, expected at least "
                f"{BLOCKS_MIN * self._files.file_bytes}, which is {BLOCKS_MIN} blocks"
            )
        self._block_bytes = block_bytes
        self._waiting_max = max(1, WAITING_BYTES_MAX // block_bytes)
        self._clock = clock
        self._fates = {fate: telemetry.KV_TIER_BLOCKS.labels("disk", fate) for fate in Fate}
        self._changed = threading.Condition()
        self._index = DiskIndex(total)
        self._rest = Rest()
        self._waiting: OrderedDict[bytes, Buffer] = OrderedDict()
        self._writing: bytes | None = None
        """The block under way, unless it was flushed meanwhile."""
        self._bad = 0
        self._closing = self._stopping = False
        self._index.restore(self._files.open())
        self._writer = threading.Thread(target=self._run, name="kv-disk", daemon=True)
        self._writer.start()

    def holds(self, block_hash: bytes) -> bool:
        """Whether `read` would find the block, unless it is bad. Never waits for the disk."""
        with self._changed:
            return self._held(block_hash)

    def leading(self, hashes: Sequence[bytes]) -> int:
        """How many of `hashes`, from the first on, are held. Never waits for the disk."""
        with self._changed:
            for count, block_hash in enumerate(hashes):
                if not self._held(block_hash):
                    return count
        return len(hashes)

    def touch(self, hashes: Sequence[bytes]) -> None:
        """A chain was used: evict its last block first, since none helps without those before.

        Each `read` is a use too, but a chain is read from its first block on, which leaves that
        as the one to go first; so say this after it. Not known after a restart. Never waits for
        the disk.
        """
        with self._changed:
            for block_hash in reversed(hashes):
                self._index.touch(self._files.name(block_hash))

    def read(self, block_hash: bytes) -> bytes | None:
        """The block, every byte of it proven, or None. Waits for the disk; never raises.

        A block that is not what was written is forgotten, and removed by the writer.
        """
        with self._changed:
            if self._closing or not self._index.touch(self._files.name(block_hash)):
                return None
        try:
            block = self._files.read(block_hash)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EIO):
                self.forget(block_hash)
            self._count(Fate.FAILED)
            return None
        if block is None:
            self.forget(block_hash)
            self._count(Fate.BAD)
            self._warn_of_bad()
            return None
        self._count(Fate.READ)
        return block

    def wants(self, block_hash: bytes) -> bool:
        """Whether `offer` would take the block now: ask before copying its bytes."""
        with self._changed:
            return self._refusal(block_hash) is None

    def offer(self, block_hash: bytes, payload: Buffer) -> bool:
        """Hand over a block to be written; whether it was taken. Never waits for the disk.

        It is not copied, and must not change from now on. Not taken, and counted, if it is held or
        waits already, if too many wait, or while the disk rests.
        """
        assert memoryview(payload).nbytes == self._block_bytes, memoryview(payload).nbytes
        with self._changed:
            refusal = self._refusal(block_hash)
            if refusal is not None:
                self._count(refusal)
                return False
            self._waiting[block_hash] = payload
            self._changed.notify()
        return True

    def forget(self, block_hash: bytes) -> None:
        """Forget a block, also if it waits. Never waits for the disk."""
        with self._changed:
            self._waiting.pop(block_hash, None)
            if self._writing == block_hash:
                self._writing = None
            self._index.drop(self._files.name(block_hash))
            self._changed.notify()

    def clear(self) -> None:
        """Forget all blocks of this namespace, and those that wait. Never waits for the disk.

        The writer then removes the files; those that it could not before the process ended are
        found again by the next one.
        """
        with self._changed:
            self._waiting.clear()
            self._writing = None
            self._index.clear()
            self._changed.notify()

    def counts(self) -> BlockCounts:
        """Where the directory's room is now; see `disk_index`. Never waits for the disk."""
        with self._changed:
            index = self._index
            return BlockCounts(index.free, index.used, index.cached, index.total)

    def close(self, timeout_s: float) -> None:
        """Take nothing more, write what waits within `timeout_s`, drop the rest, unlock.

        A second call does nothing. A writer that a hanging disk holds is left behind, with the
        lock, until its call returns.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._writer.join(timeout_s)
        with self._changed:
            self._stopping = True
            self._waiting.clear()
            self._changed.notify()
        self._writer.join(LAST_WRITE_S)
        if self._writer.is_alive():
            log.warning("KV on disk: %s hangs", self._files.directory)

    # Called with the lock.

    def _held(self, block_hash: bytes) -> bool:
        return not self._closing and self._index.holds(self._files.name(block_hash))

    def _refusal(self, block_hash: bytes) -> Fate | None:
        if self._closing or self._rest.left_s(self._clock()) > 0:
            return Fate.RESTING
        if self._held(block_hash) or block_hash in self._waiting or block_hash == self._writing:
            return Fate.HELD
        return Fate.FULL if len(self._waiting) >= self._waiting_max else None

    # Called without it.

    def _count(self, fate: Fate, blocks: int = 1) -> None:
        self._fates[fate].inc(blocks)

    def _warn_of_bad(self) -> None:
        """At the first, second, fourth, eighth …: a lost key makes all of them bad."""
        with self._changed:
            self._bad += 1
            bad = self._bad
        if bad & (bad - 1) == 0:
            log.warning("KV on disk: %d bad blocks so far in %s", bad, self._files.directory)

    # The writer's thread.

    def _run(self) -> None:
        try:
            while self._await_work():
                try:
                    self._work()
                except Exception as error:  # whatever it is, the core can do without a disk
                    self._failed(error)
        finally:
            self._files.close()

    def _await_work(self) -> bool:
        """Sleep until there is something to do; False once the tier is closed."""
        with self._changed:
            while not self._stopping:
                rest_s = self._rest.left_s(self._clock())
                if rest_s == 0 and (self._waiting or self._index.doomed):
                    return True
                if self._closing:
                    break
                self._changed.wait(rest_s or None)
        return False

    def _work(self) -> None:
        if self._rest.troubled and self._files.replaced():
            found = self._files.open()
            with self._changed:
                self._index.restore(found)
        self._remove_doomed()
        self._write_next()

    def _remove_doomed(self) -> None:
        while not self._stopping:
            with self._changed:
                name = self._index.doomed
            if name is None:
                return
            self._files.remove(name)
            with self._changed:
                self._index.removed(name)

    def _write_next(self) -> None:
        with self._changed:
            if not self._waiting:
                return
            block_hash, payload = self._waiting.popitem(last=False)
            self._writing = block_hash
            self._index.begin()
        try:
            self._files.write(block_hash, payload)
        except BaseException:
            with self._changed:
                self._writing = None
                self._index.abandon()
            raise
        self._landed(block_hash)

    def _landed(self, block_hash: bytes) -> None:
        name = self._files.name(block_hash)
        with self._changed:
            flushed, self._writing = self._writing is None, None
            evicted = self._index.land(name)
            if flushed:
                self._index.drop(name)
            recovered = self._rest.troubled
            self._rest.succeeded()
        self._count(Fate.WRITTEN)
        self._count(Fate.EVICTED, evicted)
        if recovered:
            log.warning("KV on disk: %s takes blocks again", self._files.directory)

    def _failed(self, error: Exception) -> None:
        """Rest, and let go of what waits. Said once, until a write succeeds."""
        with self._changed:
            known = self._rest.troubled
            self._rest.failed(self._clock())
            waiting = len(self._waiting)
            self._waiting.clear()
        self._count(Fate.FAILED)
        self._count(Fate.RESTING, waiting)
        if not known:
            unforeseen = None if isinstance(error, OSError | ConfigError) else error
            log.warning(
                "KV on disk: %s rests: %s", self._files.directory, error, exc_info=unforeseen
            )
