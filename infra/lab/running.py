"""`lab.json`: how `lab shell`, `ps` and `down` find a laboratory that runs.

It lies in the laboratory's run directory, whose lock its launcher holds for as long as it lives.
"""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from firstlight.infra.lab.namespaces import borrow
from firstlight.shared.errors import ConfigError

FILE_NAME = "lab.json"


@dataclass(frozen=True, slots=True)
class RunningLab:
    """What other programs have to know of a laboratory."""

    pid: int
    """Of the launcher."""
    topology: str
    control: str
    """Path of the router's socket."""
    nodes: Mapping[str, str]
    """Address of every node."""
    namespaces: Mapping[str, int]
    """Of every node, the descriptor by which the launcher holds its namespace; empty: relays."""
    processes: Mapping[str, int]
    """Process of every node that has one."""

    def write(self, run: Path) -> None:
        """Put this into the run directory, at once and whole."""
        partial = run / f"{FILE_NAME}.new"
        partial.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        partial.replace(run / FILE_NAME)

    @contextmanager
    def at(self, node: str) -> Iterator[None]:
        """Run the block, on this thread, at a node's place. Raises `ConfigError`."""
        known = self.namespaces or self.nodes
        if node not in known:
            raise ConfigError(f"no node is called {node!r}: {', '.join(known)}")
        if not self.namespaces:
            yield
            return
        namespace = borrow(self.pid, self.namespaces[node])
        try:
            with namespace.inside():
                yield
        finally:
            namespace.close()


def lab_state(state: Path) -> Path:
    """Where laboratories have their run directories, apart from those of local meshes."""
    return state / "lab"


def find_lab(state: Path) -> tuple[Path, RunningLab]:
    """The run directory and the laboratory that runs; of several, the latest.

    Raises `ConfigError` if none does.
    """
    files = (lab_state(state) / "runs").glob(f"*/{FILE_NAME}")
    found = [file for file in files if locked(file.parent)]
    if not found:
        raise ConfigError("no laboratory runs here: start one with `firstlight lab up`")
    try:
        file = max(found, key=lambda file: file.stat().st_mtime_ns)
        return file.parent, RunningLab(**json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"the running laboratory cannot be read: {error}") from error


def locked(run: Path) -> bool:
    """Whether the launcher of a run lives."""
    try:
        with (run / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False
