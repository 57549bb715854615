"""What this machine grants a process: open files, UDP buffers, memory, room on disks."""

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from firstlight.infra.checks.finding import Finding, bad, ok, unseen, warn
from firstlight.infra.checks.subject import Subject, sections
from firstlight.shared.config import Settings
from firstlight.shared.types import Role

MIB = 1 << 20
FILES_MIN, FILES_ENOUGH = 256, 4096
UDP_BYTES_ENOUGH = 4 * MIB
"""What an edge asks the kernel for; with less, a burst of packets is lost and sent again."""
CORE_MIB, OTHER_MIB = 1536, 256
"""Memory of a core with the packaged model, and of an edge or a load balancer."""
DISK_MIN_MIB, DISK_ENOUGH_MIB = 64, 1024
"""With less than the first nothing runs for long; the second is wanted where no limit is set."""
DIRECTORY_NAMES = ("directory", "dir", "folder")


def look_files(subject: Subject) -> list[Finding]:
    """The limit of open files."""
    del subject
    return [judge_files(*resource.getrlimit(resource.RLIMIT_NOFILE))]


def judge_files(soft: int, hard: int) -> Finding:
    """Every connection is an open file."""
    if soft == resource.RLIM_INFINITY or soft >= FILES_ENOUGH:
        return ok("open files", "no limit" if soft == resource.RLIM_INFINITY else str(soft))
    can_raise = hard == resource.RLIM_INFINITY or hard >= FILES_ENOUGH
    do = f"ulimit -n {FILES_ENOUGH}, in the shell or unit that starts the node"
    if not can_raise:
        do = f"raise the hard limit (now {hard}), in limits.conf or LimitNOFILE=, then {do}"
    if soft < FILES_MIN:
        return bad("open files", f"{soft}, expected {FILES_MIN} at the very least", do)
    return warn("open files", f"{soft}, expected {FILES_ENOUGH}: each connection takes one", do)


def look_udp(subject: Subject, proc: Path = Path("/proc")) -> list[Finding]:
    """The largest UDP buffers that a socket may have, which QUIC lives on."""
    if Role.EDGE not in subject.roles:
        return []
    found = []
    for name, direction in (("rmem_max", "receive"), ("wmem_max", "send")):
        limit = _number(proc / "sys/net/core" / name)
        found.append(judge_udp(direction, name, limit))
    return found


def judge_udp(direction: str, key: str, limit_bytes: int | None) -> Finding:
    """Whether one of the kernel's limits is as high as an edge wants it; None: not known."""
    name = f"udp {direction} buffer"
    if limit_bytes is None:
        return unseen(name, "this system does not show its limit in /proc")
    if limit_bytes < UDP_BYTES_ENOUGH:
        seen = f"at most {limit_bytes} bytes, expected {UDP_BYTES_ENOUGH}: bursts will be lost"
        return warn(name, seen, f"sudo sysctl -w net.core.{key}={UDP_BYTES_ENOUGH}")
    return ok(name, f"up to {limit_bytes} bytes")


def look_tcp(subject: Subject, proc: Path = Path("/proc")) -> list[Finding]:
    """Whether links between edges and cores keep their window; on one machine it is no matter."""
    if not subject.meant or not subject.roles & {Role.EDGE, Role.CORE}:
        return []
    ipv4 = proc / "sys/net/ipv4"
    try:
        control = (ipv4 / "tcp_congestion_control").read_text("ascii").strip()
    except OSError:
        control = ""
    return [judge_tcp(control, _number(ipv4 / "tcp_slow_start_after_idle"))]


def judge_tcp(congestion_control: str, slow_start_after_idle: int | None) -> Finding:
    """A window that falls in quiet times costs the next long prompt some round trips."""
    name = "tcp after idle"
    if slow_start_after_idle is None:
        return unseen(name, "this system does not show it in /proc")
    if slow_start_after_idle == 0:
        return ok(name, "connections keep their window")
    if congestion_control == "bbr":
        return ok(name, "bbr keeps its window")
    return warn(
        name,
        "connections begin slowly again, so the edge must send padding to keep links warm",
        "sudo sysctl -w net.ipv4.tcp_slow_start_after_idle=0",
    )


def look_memory(subject: Subject, proc: Path = Path("/proc")) -> list[Finding]:
    """Whether the nodes fit into memory; a local mesh has two of each."""
    nodes = 1 if subject.meant else 2
    wanted = sum(CORE_MIB if role is Role.CORE else OTHER_MIB for role, _ in subject.nodes)
    return [judge_memory(available_mib(proc), wanted * nodes)]


def judge_memory(available: int | None, wanted: int) -> Finding:
    """`wanted` MiB is with room; with less than half of it the kernel ends a node."""
    if available is None:
        return unseen("memory", "this system does not say how much it has")
    seen = f"{available} MiB available"
    if available < wanted // 2:
        return bad("memory", f"{seen}, expected {wanted}", "free memory, or run fewer nodes here")
    if available < wanted:
        return warn("memory", f"{seen}, expected {wanted}", "lower engine.blocks, or free memory")
    return ok("memory", seen)


def available_mib(proc: Path, cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What a new process can have: the kernel's own estimate, or the container's limit if less."""
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    room = None if limit is None else max(0, limit - (used or 0)) // MIB
    free = _available(proc / "meminfo")
    known = [value for value in (room, free) if value is not None]
    return min(known) if known else None


def _available(meminfo: Path) -> int | None:
    """From /proc/meminfo; elsewhere the memory that the machine has, which is an upper bound."""
    try:
        for line in meminfo.read_text("ascii", "replace").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) // 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB
    except (OSError, ValueError):
        return None


def look_disks(subject: Subject) -> list[Finding]:
    """The state directory, and every directory that the settings name for data."""
    found = [_disk("state directory", subject.state, DISK_ENOUGH_MIB)]
    for role, settings in subject.nodes:
        for key, path, wanted in directories(settings):
            found.append(_disk(f"{role} {key}", path, wanted))
    return found


def directories(settings: Settings) -> Iterator[tuple[str, Path, int]]:
    """Setting, directory, and the MiB that may come to lie there: its `bytes_max`, if any."""
    values = dict(sections(settings))
    for key, path in values.items():
        section, _, last = key.rpartition(".")
        if isinstance(path, Path) and last in DIRECTORY_NAMES:
            limit = values.get(f"{section}.bytes_max")
            yield key, path, limit // MIB if isinstance(limit, int) else DISK_ENOUGH_MIB


def _disk(name: str, path: Path, wanted_mib: int) -> Finding:
    try:
        there = next(p for p in (path, *path.absolute().parents) if p.exists())
        if not there.is_dir():
            return bad(name, f"{there} is not a directory", "name another directory")
        room = shutil.disk_usage(there).free // MIB + (_held_mib(path) if there == path else 0)
        writable = os.access(there, os.W_OK | os.X_OK)
        return judge_disk(name, path, room, wanted_mib, writable=writable)
    except OSError as error:
        return bad(name, f"{path}: {error.strerror}", "name another directory")


def _held_mib(path: Path) -> int:
    """What lies there already, which is part of what may come to lie there."""
    with os.scandir(path) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries) // MIB


def judge_disk(name: str, path: Path, room_mib: int, wanted_mib: int, *, writable: bool) -> Finding:
    """Whether a directory, or the one that it will be made in, can be written and has room."""
    seen = f"{path}: {room_mib} MiB"
    if not writable:
        return bad(name, f"{path} cannot be written", "change its owner, or name another")
    if room_mib < DISK_MIN_MIB:
        return bad(name, f"{seen}, expected {wanted_mib}", "free some, or name another disk")
    if room_mib < wanted_mib:
        return warn(name, f"{seen}, expected {wanted_mib}", "free some, or name another disk")
    return ok(name, seen)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):  # not Linux, or "max"
        return None
