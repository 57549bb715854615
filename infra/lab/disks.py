"""Disks of their own for nodes, which nobody has to clean up, and which can be filled.

A disk is a file system in memory, mounted in a mount namespace of its own. Like the network
namespaces it lives as long as the descriptor that holds it or a process in it, so it outlives a
node that is killed, and is gone when the laboratory is, however that ended.
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from firstlight.shared.errors import ConfigError

FILLER = "filler"
"""The file that takes what is free on a disk."""
_CLONE_NEWNS, _CLONE_FS = 0x00020000, 0x00000200
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 2, 4, 0x4000, 0x40000
_MINE = "/proc/thread-self/ns/mnt"
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk at `directory`, for who is inside; `close` lets go of it."""

    directory: Path
    fd: int
    """Holds the mount namespace."""
    root_fd: int
    """Its folder, to be reached from outside."""

    @property
    def path(self) -> Path:
        """The same folder for this process, which is not inside."""
        return Path(f"/proc/self/fd/{self.root_fd}")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Run the block, on this thread, where the disk is. For the start of a process.

        From then on this thread's current directory is its own.
        """
        home, here = os.open(_MINE, os.O_RDONLY | os.O_CLOEXEC), os.getcwd()
        try:
            _check(_libc().unshare(_CLONE_FS), "a thread cannot leave the others' directory")
            self._enter(self.fd, here)
            try:
                yield
            finally:
                self._enter(home, here)
        finally:
            os.close(home)

    @staticmethod
    def _enter(fd: int, here: str) -> None:
        _check(_libc().setns(fd, _CLONE_NEWNS), "a mount namespace cannot be entered")
        os.chdir(here)

    def close(self) -> None:
        """Let go; it is gone when the last process in it has ended."""
        os.close(self.root_fd)
        os.close(self.fd)


def new_disk(directory: Path, mb: float) -> Disk:
    """An empty disk of this size. Raises `ConfigError`."""
    directory.mkdir(parents=True, exist_ok=True)
    made: list[Disk] = []
    errors: list[BaseException] = []

    def make() -> None:
        try:
            made.append(_make(directory, mb))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=make, name="new-disk")  # it cannot come back, and ends
    thread.start()
    thread.join()
    for error in errors:
        raise error
    return made[0]


def fill(directory: Path) -> int:
    """Take all that is free where a directory is; returns how many bytes. Raises `ConfigError`."""
    path = directory / FILLER
    taken = 0
    try:
        with path.open("wb", buffering=0) as file:
            piece = bytes(_PIECE_BYTES)
            while piece:
                try:
                    taken += file.write(piece)
                except OSError:
                    piece = piece[: len(piece) // 2]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    return taken


def free(directory: Path) -> None:
    """Give back what `fill` took; harmless if there is nothing."""
    with suppress(OSError):
        (directory / FILLER).unlink()


def _make(directory: Path, mb: float) -> Disk:
    problem = f"a disk of its own cannot be made at {directory}"
    libc = _libc()
    _check(libc.unshare(_CLONE_NEWNS), problem)
    _check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), problem)
    size = f"size={round(mb * 1024)}k,mode=0700".encode()
    where = os.fsencode(directory)
    _check(libc.mount(b"firstlight", where, b"tmpfs", _MS_NOSUID | _MS_NODEV, size), problem)
    flags = os.O_RDONLY | os.O_CLOEXEC
    return Disk(directory, os.open(_MINE, flags), os.open(directory, flags | os.O_DIRECTORY))


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    text, flags = ctypes.c_char_p, ctypes.c_ulong
    libc.mount.argtypes = (text, text, text, flags, text)
    return libc


def _check(result: int, problem: str) -> None:
    if result != 0:
        raise ConfigError(f"{problem}: {os.strerror(ctypes.get_errno())}")
