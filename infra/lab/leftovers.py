"""Processes that a laboratory left behind, found by a mark in their environment.

Nodes end when their launcher does, but a frozen one cannot, nor does what someone started in a
node's shell. All of them have the run directory as their state directory, which
no other process has.
"""

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from time import sleep

from firstlight.shared.clock import monotonic_s

GONE_S = 5.0
_POLL_S = 0.02


def marked(run: Path, among: Iterable[int] | None = None) -> list[int]:
    """Processes of this run, but for the calling one. `among`: only of these; null: of all."""
    mark = f"FIRSTLIGHT_STATE_DIR={run}".encode()
    if among is None:
        among = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    found = []
    for pid in among:
        if pid == os.getpid():
            continue
        entry = Path(f"/proc/{pid}")
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0") and not _zombie(entry):
                found.append(pid)
        except OSError:  # it has ended, or is not ours to look at
            continue
    return found


def end_marked(run: Path) -> list[int]:
    """Kill the processes of a run that nobody looks after any more; returns who remains."""
    deadline = monotonic_s() + GONE_S
    while left := marked(run):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        if monotonic_s() > deadline:
            break
        sleep(_POLL_S)
    return left


def _zombie(entry: Path) -> bool:
    return entry.joinpath("stat").read_text("utf-8").rpartition(")")[2].split()[0] == "Z"
