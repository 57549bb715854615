"""Trees of processes out of /proc: their memory, and what CPU others took meanwhile.

Where there is no /proc nothing is known, and None says so.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_KB_MB = 1024 / 1e6
_BUSY = (0, 1, 2, 5, 6, 7)
"""Of a `cpu` line: user, nice, system, irq, softirq, steal; guests are in user already."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Ticks since the machine started."""

    busy: int
    total: int
    by_process: Mapping[int, int]
    """Of the processes that are ours."""


def tree(roots: Iterable[int], parents: Mapping[int, int]) -> set[int]:
    """The roots and all that descend from them. `parents`: of each process, who started it."""
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def foreign_share(before: Reading, after: Reading) -> float | None:
    """The share of all CPU time between two readings that was busy for none of our processes."""
    total = after.total - before.total
    if total <= 0:
        return None
    ours = sum(ticks - before.by_process.get(pid, 0) for pid, ticks in after.by_process.items())
    return max(0, after.busy - before.busy - ours) / total


def read(roots: Sequence[int], proc: Path = PROC) -> Reading | None:
    """Now, with this process and the trees of `roots` as ours."""
    try:
        fields = [int(n) for n in (proc / "stat").read_text().splitlines()[0].split()[1:9]]
        stats = _stats(proc)
    except (OSError, ValueError, IndexError):
        return None
    parents = {pid: parent for pid, (parent, _) in stats.items()}
    ours = tree([os.getpid(), *roots], parents) & stats.keys()
    busy = sum(fields[index] for index in _BUSY if index < len(fields))
    return Reading(busy, sum(fields), {pid: stats[pid][1] for pid in ours})


def _stats(proc: Path) -> dict[int, tuple[int, int]]:
    """Of each process: who started it, and the ticks that it computed."""
    stats = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name stands in parentheses and may hold any character.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            stats[int(entry.name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    return stats


def memory_mb(roots: Sequence[int], proc: Path = PROC) -> dict[str, float | None]:
    """`rss` and `pss` of the trees together; None where /proc does not say."""
    try:
        parents = {pid: parent for pid, (parent, _) in _stats(proc).items()}
    except OSError:
        return {"rss": None, "pss": None}
    pids = tree(roots, parents) & parents.keys()
    return {
        "rss": _sum(proc / str(pid) / "status" for pid in pids),
        "pss": _sum((proc / str(pid) / "smaps_rollup" for pid in pids), "Pss:"),
    }


def _sum(files: Iterable[Path], line: str = "VmRSS:") -> float | None:
    values = [value for file in files if (value := _kb(file, line)) is not None]
    return round(sum(values) * _KB_MB, 1) if values else None


def _kb(file: Path, name: str) -> int | None:
    try:
        lines = file.read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith(name)), None)
    except (OSError, ValueError, IndexError):
        return None
