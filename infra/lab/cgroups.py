"""Limits of a process' CPU time and memory: Linux control groups, of both versions.

A group is a folder, `firstlight-RUN-NODE`, and outlives whoever made it; so the next laboratory
removes those of runs that are over, as it removes their files.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError

MOUNTS = Path("/proc/self/mounts")
PERIOD_US = 20_000
"""Short, so that a slow process crawls instead of standing still most of a tenth of a second."""
CPU, MEMORY = "cpu", "memory"
_REMOVE_S = 2.0
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where one controller's groups are."""

    controller: str
    root: Path
    version: int


@dataclass(frozen=True, slots=True)
class Group:
    """A group with one process in it; `close` puts the process back and removes the group."""

    hierarchy: Hierarchy
    path: Path
    before: Path
    """The group that the process was in."""

    def close(self) -> None:
        """Harmless if the process has ended, or the group is gone."""
        if self.hierarchy.version == 2 and self._shared():
            return
        for pid in _read(self.path / "cgroup.procs").split():
            _move(self.before, pid) or _move(self.hierarchy.root, pid)
        _remove(self.path)

    def _shared(self) -> bool:
        """Take this limit away; whether the other one, of the same group, is left."""
        other = MEMORY if self.hierarchy.controller == CPU else CPU
        with suppress(OSError):
            _write(self.path / f"{self.hierarchy.controller}.max", "max")
        return _read(self.path / f"{other}.max").partition(" ")[0].strip() not in ("", "max")


def find(controller: str, mounts: str | None = None) -> Hierarchy:
    """Where `cpu` or `memory` is limited here. Raises `ConfigError` where it cannot be."""
    text = _read(MOUNTS) if mounts is None else mounts
    for line in text.splitlines():
        _, where, kind, options, *_ = line.split(" ")
        if kind == "cgroup" and controller in options.split(","):
            return _writable(Hierarchy(controller, Path(where), 1))
    for line in text.splitlines():
        _, where, kind, *_ = line.split(" ")
        if kind == "cgroup2" and controller in _read(Path(where) / "cgroup.controllers").split():
            return _writable(Hierarchy(controller, Path(where), 2))
    raise ConfigError(f"no control group of this machine limits {controller}")


def limit_cpu(name: str, pid: int, share: float) -> Group:
    """Give a process this share of one CPU. Raises `ConfigError`."""
    quota_us = round(share * PERIOD_US)
    return _limit(
        find(CPU),
        name,
        pid,
        v1={"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota_us)},
        v2={"cpu.max": f"{quota_us} {PERIOD_US}"},
    )


def limit_memory(name: str, pid: int, more_bytes: int) -> Group:
    """Let a process take so much more memory, what it has not counted. Raises `ConfigError`."""
    return _limit(
        find(MEMORY),
        name,
        pid,
        v1={"memory.limit_in_bytes": str(more_bytes)},
        v2={"memory.max": str(more_bytes), "memory.swap.max": "0"},
    )


def remove_groups(run: str) -> list[str]:
    """Remove all groups of a run whose processes have ended; returns those that remain."""
    return [str(path) for path in _groups(run) if not _remove(path)]


def name_of(run: str, node: str) -> str:
    """Of a group."""
    return f"firstlight-{run}-{node}"


def _groups(run: str) -> Iterator[Path]:
    for controller in (CPU, MEMORY):
        try:
            hierarchy = find(controller)
        except ConfigError:
            continue
        yield from hierarchy.root.glob(name_of(run, "*"))


def _limit(
    hierarchy: Hierarchy, name: str, pid: int, *, v1: dict[str, str], v2: dict[str, str]
) -> Group:
    path, before = hierarchy.root / name, hierarchy.root / _group_of(pid, hierarchy)
    if before == path:  # version 2: one tree for all controllers, and a process is in one group
        before = hierarchy.root
    group = Group(hierarchy, path, before)
    try:
        if hierarchy.version == 2:
            _write(hierarchy.root / "cgroup.subtree_control", f"+{hierarchy.controller}")
        group.path.mkdir(exist_ok=True)
        for file, value in (v1 if hierarchy.version == 1 else v2).items():
            _write(group.path / file, value, optional=file == "memory.swap.max")
        _write(group.path / "cgroup.procs", str(pid))
    except OSError as error:
        group.close()
        raise ConfigError(f"{group.path}: {error.strerror}") from error
    return group


def _group_of(pid: int, hierarchy: Hierarchy) -> str:
    """Where a process is in a tree; its root if that is not to be seen from here."""
    for line in _read(Path(f"/proc/{pid}/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        wanted = hierarchy.controller if hierarchy.version == 1 else ""
        if wanted in controllers.split(","):
            return path.lstrip("/")
    return ""


def _writable(hierarchy: Hierarchy) -> Hierarchy:
    if not os.access(hierarchy.root, os.W_OK):
        raise ConfigError(f"{hierarchy.root}: control groups cannot be made; it needs root")
    return hierarchy


def _move(group: Path, pid: str) -> bool:
    try:
        _write(group / "cgroup.procs", pid)
    except OSError:
        return False
    return True


def _remove(path: Path) -> bool:
    """Whether it is gone: who has just ended is in it for a moment."""
    deadline = monotonic_s() + _REMOVE_S
    while path.exists():
        try:
            path.rmdir()
        except OSError:
            if monotonic_s() > deadline:
                return False
            sleep(_POLL_S)
    return True


def _write(path: Path, text: str, *, optional: bool = False) -> None:
    if optional and not path.exists():
        return
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
