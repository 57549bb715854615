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


def processes(run: Path) -> dict[int, str]:
    """The processes of a run that say whose place they have."""
    found = {}
    for pid in marked(run):
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for word in words:
            name, _, value = word.decode("utf-8", "replace").partition("=")
            if name == NODE_VARIABLE:
                found[pid] = value
    return found


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
