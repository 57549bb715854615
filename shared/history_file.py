"""A history on its way to a file: noted on any thread, written by a thread of its own.

Whoever notes something pays for a tuple in a list, never for JSON or a disk. A disk that is full or
slow costs lines, which are counted and told as soon as it takes lines again; it never costs a
stream. After SIGKILL at most the last `WRITE_EVERY_S` and half a line are missing.
"""

import asyncio
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from firstlight.shared.clock import monotonic_s, unix_s
from firstlight.shared.errors import ConfigError
from firstlight.shared.history import VERSION, Fact, Line, Waiting, What, encode

log = logging.getLogger(__name__)

WRITE_EVERY_S = 0.02
SAMPLE_EVERY_S = 0.5
CLOSE_S = 5.0
"""How long a process that ends waits for its last lines."""
FILE_BYTES_MAX = 4 << 30
"""A history that grows beyond this loses lines, and says so."""
SUFFIX = ".jsonl"
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")

Figures = Callable[[], Mapping[str, Fact]]


class History:
    """One process' history. `note` is thread-safe and never blocks on IO."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` if the file cannot be made."""
        self.path = path
        self.figures: Figures = dict
        """What samples, and the last line, say of how full the node is."""
        self._waiting = Waiting()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._partial = False
        self._bytes = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise ConfigError(f"history: {path}: {error.strerror or error}") from None
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def note(
        self,
        what: What,
        stream: str = "",
        *,
        epoch: int | None = None,
        offset: int | None = None,
        hash: bytes | None = None,
        facts: Mapping[str, Fact] | None = None,
    ) -> None:
        """Something happened now."""
        shown = "" if hash is None else hash.hex()
        with self._lock:
            self._waiting.add(monotonic_s(), what, stream, epoch, offset, shown, facts or {})

    def close(self, facts: Mapping[str, Fact] | None = None) -> None:
        """The process ends by itself: the last line, with the last figures; wait until written."""
        self.note(What.STOPPED, facts={**self.figures(), **usage(), **(facts or {})})
        self._closing.set()
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            os.close(self._file)

    def _run(self) -> None:
        while not self._closing.wait(WRITE_EVERY_S):
            self._write()
        self._write()

    def _write(self) -> None:
        with self._lock:
            lines = self._waiting.take(monotonic_s())
        written = 0
        try:
            for some in _slices(lines):
                self._append(b"".join(map(encode, some)))
                written += len(some)
        except OSError as error:
            log.warning("history %s: %s", self.path, error.strerror or error)
        if written < len(lines):
            with self._lock:
                self._waiting.lost(sum(map(_count, lines[written:])))

    def _append(self, text: bytes) -> None:
        """All of it, or `OSError`; half a line that a full disk left is ended first."""
        if self._bytes + len(text) > FILE_BYTES_MAX:
            raise OSError(0, f"more than {FILE_BYTES_MAX} bytes")
        if self._partial:
            text = b"\n" + text
        done = 0
        try:
            while done < len(text):
                done += os.write(self._file, text[done:])
        finally:
            self._bytes += done
            if done:
                self._partial = text[done - 1] != ord("\n")


def _count(line: Line) -> int:
    """How many noted lines one stands for."""
    told = line.facts.get("count") if line.what is What.DROPPED else None
    return told if isinstance(told, int) else 1


def _slices(lines: list[Line], size: int = 256) -> Iterator[list[Line]]:
    """Parts that are written at once, so that a full disk costs no more than it must."""
    return (lines[start : start + size] for start in range(0, len(lines), size))


@contextmanager
def history_of(where: Path | None, node: str, role: str) -> Iterator[History | None]:
    """The history of this process while the block runs; None if `where` is.

    `where`: a file that ends in .jsonl, or a directory, in which each process has a file of its
    own. What raised in the block is named on the last line.
    """
    if where is None:
        yield None
        return
    history = History(_path(where, node))
    here: dict[str, Fact] = {"pid": os.getpid(), "unix": unix_s(), "boot": boot()}
    began: dict[str, Fact] = {"version": VERSION, "node": node, "role": role}
    history.note(What.BEGAN, facts={**began, **here, **usage()})
    failed: dict[str, Fact] = {}
    try:
        yield history
    except BaseException as error:
        failed = {"failed": type(error).__name__}
        raise
    finally:
        history.close(failed)


@asynccontextmanager
async def sampling(history: History | None, figures: Figures) -> AsyncIterator[None]:
    """Note `figures` a few times a second while the block runs, and how late the loop was."""
    if history is None:
        yield
        return
    history.figures = figures
    task = asyncio.create_task(_sample(history), name="history-samples")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def _sample(history: History) -> None:
    late_ms = 0.0
    while True:
        history.note(What.SAMPLE, facts={**history.figures(), **usage(), "late_ms": late_ms})
        due_s = monotonic_s() + SAMPLE_EVERY_S
        await asyncio.sleep(SAMPLE_EVERY_S)
        late_ms = round((monotonic_s() - due_s) * 1e3, 1)


def usage() -> dict[str, Fact]:
    """Memory and open files of this process, where the platform tells them."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        files = len(os.listdir("/proc/self/fd"))
    except (OSError, ValueError, IndexError):
        return {}
    return {"rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"), "files": files}


def boot() -> str:
    """Names this machine since it was started: monotonic clocks of the same name are one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _path(where: Path, node: str) -> Path:
    if where.suffix == SUFFIX:
        return where
    return where / f"{_UNFIT.sub('_', node)}.{int(unix_s() * 1000)}.{os.getpid()}{SUFFIX}"
