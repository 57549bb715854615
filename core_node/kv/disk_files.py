"""A directory of sealed blocks: one file a block, whole or not there.

    16 bytes    magic "FLKV", version (u32), bytes of the block (u64), little endian
    16 a piece  the MAC of each piece of at most 1 MiB, see `core_node.kv.seal`
    the block

A block is written under a name that nobody reads and then renamed, so a process killed at any
point leaves a whole block or none. Nothing is synced: what a power loss tears fails its MAC and is
a miss, which is cheaper than a sync a block. Names are made of the namespace and the block's hash,
in hex, and never of anything that a client said.

Files are read, not mapped. A page of a mapping that the disk cannot deliver, or that somebody has
cut off, is a SIGBUS, the end of the process; a read of it is an error, and a miss. And what was
checked is then what is returned: a mapping could change between the two.

The directory is locked by its own descriptor (so it must be on a file system that can lock
directories, as local ones do), and all names are looked up below that descriptor: whoever moves or
replaces the directory gets no write of ours into something that we did not lock. Reads may come
from any thread, all else from one.
"""

import fcntl
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from struct import Struct

from firstlight.core_node.kv.disk_index import Found
from firstlight.core_node.kv.seal import (
    MAC_BYTES,
    PIECE_BYTES_MAX,
    BlockSeals,
    pieces,
)
from firstlight.shared.blocks import HASH_BYTES, Buffer
from firstlight.shared.clock import unix_s
from firstlight.shared.errors import ConfigError

PARTIAL = "writing.part"
MTIME_STEP_S = 60.0
"""A read sets a file's mtime, the order of use after a restart, if it is older than this."""

_MAGIC, _VERSION = b"FLKV", 1
_PREAMBLE = Struct("<4sIQ")
_NAME = re.compile(r"([0-9a-f]{16})-[0-9a-f]{32}\.kv")
_CLOSED = -1


class BlockFiles:
    """The files of one directory; `open` it before anything else."""

    def __init__(
        self,
        directory: Path,
        seals: BlockSeals,
        block_bytes: int,
        *,
        write: Callable[[int, memoryview], int] = os.write,
    ) -> None:
        """`write` takes a descriptor and bytes, and returns how many of them it wrote."""
        assert block_bytes > 0, block_bytes
        self.directory = directory
        self._seals = seals
        self._block_bytes = block_bytes
        self._write = write
        self._pieces = tuple(pieces(block_bytes))
        self._preamble = _PREAMBLE.pack(_MAGIC, _VERSION, block_bytes)
        self._head_bytes = len(self._preamble) + MAC_BYTES * len(self._pieces)
        self.file_bytes = self._head_bytes + block_bytes
        """Of each file of ours."""
        self._descriptor = _CLOSED

    def name(self, block_hash: bytes) -> str:
        """Of a block's file."""
        assert len(block_hash) == HASH_BYTES, len(block_hash)
        return f"{self._seals.namespace}-{block_hash.hex()}.kv"

    def open(self) -> Found:
        """Make the directory (0700) unless it is there, lock it, and say what lies in it.

        Again after it was `replaced`: then the new one takes the old one's place at once, under
        the same descriptor, which readers may be using. Raises `ConfigError` for a directory that
        cannot be used, or that another process uses.
        """
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        except (OSError, ValueError) as error:  # ValueError: a name with a null byte
            raise ConfigError(f"KV on disk: cannot use {self.directory}: {error}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = self._look(descriptor)
        except OSError as error:
            os.close(descriptor)
            why = "another process uses it" if isinstance(error, BlockingIOError) else error
            raise ConfigError(f"KV on disk: cannot use {self.directory}: {why}") from None
        if self._descriptor == _CLOSED:
            self._descriptor = descriptor
        else:
            os.dup2(descriptor, self._descriptor, inheritable=False)
            os.close(descriptor)
        return found

    def replaced(self) -> bool:
        """Whether the directory's path does not lead to what was opened any more."""
        try:
            there = os.stat(self.directory)
        except FileNotFoundError:
            return True
        return not os.path.samestat(there, os.fstat(self._descriptor))

    def close(self) -> None:
        """Unlock; reads from now on fail as those of a broken disk do."""
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            os.close(descriptor)

    def read(self, block_hash: bytes) -> bytes | None:
        """The block, or None if what lies there is not what was written. Raises `OSError`."""
        flags = os.O_RDONLY | os.O_NOFOLLOW
        descriptor = os.open(self.name(block_hash), flags, dir_fd=self._descriptor)
        with os.fdopen(descriptor, "rb") as file:
            head = file.read(self._head_bytes)
            block = file.read(self._block_bytes)
            if file.read(1) or not self._proven(block_hash, head, block):
                return None
            if unix_s() - os.fstat(descriptor).st_mtime > MTIME_STEP_S:
                with suppress(OSError):  # a read-only disk: the order after a restart is older
                    os.utime(descriptor)
        return block

    def write(self, block_hash: bytes, block: Buffer) -> None:
        """Put a block there, in place of what has its name. Raises `OSError`, and leaves nothing.

        The room that it takes until then is that of one file more.
        """
        view = memoryview(block).cast("B")
        assert len(view) == self._block_bytes, len(view)
        here = self._descriptor
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        try:
            descriptor = os.open(PARTIAL, flags, 0o600, dir_fd=here)
            try:
                self._write_all(descriptor, memoryview(self._head(block_hash, view)))
                self._write_all(descriptor, view)
            finally:
                os.close(descriptor)
            os.rename(PARTIAL, self.name(block_hash), src_dir_fd=here, dst_dir_fd=here)
        except BaseException:
            with suppress(OSError):
                self.remove(PARTIAL)
            raise

    def remove(self, name: str) -> None:
        """Remove a file, if it is there. Raises `OSError`."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def _head(self, block_hash: bytes, block: memoryview) -> bytes:
        macs = (
            self._seals.seal(block_hash, offset, len(block), block[offset : offset + length])
            for offset, length in self._pieces
        )
        return self._preamble + b"".join(macs)

    def _proven(self, block_hash: bytes, head: bytes, block: bytes) -> bool:
        if len(block) != self._block_bytes or not head.startswith(self._preamble):
            return False
        macs, view = head[len(self._preamble) :], memoryview(block)
        return all(
            self._seals.holds(
                macs[MAC_BYTES * index : MAC_BYTES * (index + 1)],
                block_hash,
                offset,
                len(block),
                view[offset : offset + length],
            )
            for index, (offset, length) in enumerate(self._pieces)
        )

    def _write_all(self, descriptor: int, view: memoryview) -> None:
        while view:
            view = view[self._write(descriptor, view[:PIECE_BYTES_MAX]) :]

    def _look(self, descriptor: int) -> Found:
        """Names, sizes and times alone: no file is opened."""
        blocks: list[tuple[int, str]] = []
        others: list[tuple[int, str, int]] = []
        spoiled: list[tuple[str, int]] = []
        with os.scandir(descriptor) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is None and entry.name != PARTIAL:
                    continue
                try:
                    stat = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed by somebody meanwhile
                    continue
                if not S_ISREG(stat.st_mode):
                    continue
                slots = max(1, -(-stat.st_size // self.file_bytes))
                if match is not None and match[1] != self._seals.namespace:
                    others.append((stat.st_mtime_ns, entry.name, slots))
                elif match is not None and stat.st_size == self.file_bytes:
                    blocks.append((stat.st_mtime_ns, entry.name))
                else:
                    spoiled.append((entry.name, slots))
        return Found(
            blocks=tuple(name for _, name in sorted(blocks)),
            others=tuple((name, slots) for _, name, slots in sorted(others)),
            spoiled=tuple(spoiled),
        )
