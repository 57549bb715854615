"""Which process of a laboratory is at the other end of a local connection, asked of Linux' /proc.

Only relay mode needs it: with namespaces a packet comes from the device of whoever sent it.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from firstlight.infra.lab.leftovers import marked

NODE_VARIABLE = "LAB_NODE"
"""In the environment of each process of a laboratory: whose place it has."""

Kind = Literal["tcp", "udp"]


class Processes:
    """The processes of a run that say whose place they have."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._known: dict[int, str] = {}

    def now(self) -> dict[int, str]:
        """Those that live. Who is known is not read again; a stranger is, as it may be about to
        become another program."""
        living = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        self._known = {pid: name for pid, name in self._known.items() if pid in living}
        for pid in marked(self._run, living - self._known.keys()):
            if (name := _place(pid)) is not None:
                self._known[pid] = name
        return dict(self._known)


def _place(pid: int) -> str | None:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for word in words:
        name, _, value = word.decode("utf-8", "replace").partition("=")
        if name == NODE_VARIABLE:
            return value
    return None


def owner(kind: Kind, port: int, to_port: int, known: Mapping[int, str]) -> str | None:
    """Who of `known` has the local socket at `port` that speaks to `to_port`; None if nobody."""
    inodes = _inodes(kind, port, to_port)
    for pid, name in known.items():
        try:
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                if os.readlink(fd) in inodes:
                    return name
        except OSError:  # it has ended, or has closed the descriptor meanwhile
            continue
    return None


def _inodes(kind: Kind, port: int, to_port: int) -> set[str]:
    found = set()
    for family in (kind, f"{kind}6"):
        try:
            lines = Path(f"/proc/net/{family}").read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            here, there = (int(fields[i].rpartition(":")[2], 16) for i in (1, 2))
            # A datagram socket may be connected to nobody, and has port 0 there then.
            if here == port and there in ((to_port,) if kind == "tcp" else (to_port, 0)):
                found.add(f"socket:[{fields[9]}]")
    return found
