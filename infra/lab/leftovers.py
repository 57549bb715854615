"""Processes that a laboratory left behind, found by a mark in their environment.

Nodes end when their launcher does, but a frozen one cannot, nor does what someone started in a
node's shell. All of them have the run directory as their state directory, which
no other process has.
"""

import os
import signal
from pathlib import Path
from time import sleep

from firstlight.shared.clock import monotonic_s

GONE_S = 5.0
_POLL_S = 0.02


def marked(run: Path) -> list[int]:
    """Processes of this run, but for the calling one."""
    mark = f"FIRSTLIGHT_STATE_DIR={run}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0") and not _zombie(entry):
                found.append(int(entry.name))
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
