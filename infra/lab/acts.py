"""What a laboratory does to make each fault, and to take it back.

Signals and control groups for a process, the router for links, files and disks, a command to an
index server; and for what only a node can do to itself, its door. `faults` keeps the books.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from firstlight.infra.children import Child
from firstlight.infra.lab.cgroups import Group, limit_cpu, limit_memory, name_of
from firstlight.infra.lab.control import Control
from firstlight.infra.lab.disks import fill, free
from firstlight.infra.lab.fault_plan import Fault, struck
from firstlight.infra.lab.lab import Lab
from firstlight.infra.lab.plan import disk_directory, faults_file
from firstlight.infra.lab.spoil import corrupt
from firstlight.infra.lab.topology import OPERATOR
from firstlight.infra.valkey import flush
from firstlight.shared.errors import ConfigError, FirstlightError, PeerError

DOOR_S = 2.0
"""How long a node may take to say that it fails now."""
FROZEN_S = 2.0
"""How long a process may take to stand still."""
ENDED_S = 3.0
"""How long a killed process may take to be gone."""
EVERYONE = "*"


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Undo:
    """How to take a fault back."""

    back: Callable[[], None] = _nothing
    """So that all is as before: what was killed is started again."""
    clean: Callable[[], None] | None = None
    """At the end of a run: starts nothing, and leaves nothing. None: as `back`."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Links that are cut, or with `link` changed, for as long as a fault lasts."""

    source: str
    target: str
    one_way: bool
    link: dict[str, object] | None = None


class Acts:
    """Does faults to one laboratory. Nothing here is noted anywhere; one call at a time."""

    def __init__(self, lab: Lab, rng: Random) -> None:
        self._lab, self._mesh, self._rng = lab, lab.mesh, rng
        self._cuts: dict[str, list[Cut]] = {}
        """By the fault that made them."""
        self._frozen: dict[str, Child] = {}
        self._later: dict[str, list[Callable[[], None]]] = {}
        """What a frozen node could not be told yet, by node."""
        self._killed: dict[str, Child] = {}
        self.back: set[str] = set()
        """Who should serve again, and was not waited for yet."""

    def do(self, fault: Fault) -> Undo:
        """Raises `ConfigError` for what cannot be done here or now, `PeerError` if it fails."""
        acts: dict[str, Callable[[Fault], Undo]] = {
            "kill": self._kill,
            "restart": self._restart,
            "freeze": self._freeze,
            "slow": self._slow,
            "memory": self._memory,
            "clock": self._clock,
            "partition": self._link,
            "link": self._link,
            "region": self._region,
            "disk": self._disk,
            "corrupt": self._corrupt,
            "flush": self._flush,
        }
        return acts.get(fault.do, self._switch)(fault)

    def possible(self, fault: Fault) -> None:
        """Raise `ConfigError` if the node does not run, or cannot hear what it is told."""
        if fault.node is None:
            return
        self._child(fault.node)
        if fault.node in self._frozen and fault.do not in ("kill", "restart"):
            raise ConfigError(f"{fault.do}: {fault.node} is frozen")

    def runs(self, node: str) -> bool:
        """Whether its process lives, frozen or not."""
        return self._running(node) is not None

    # Processes.

    def _child(self, node: str) -> Child:
        child = self._running(node)
        if child is None:
            raise ConfigError(f"{node} does not run")
        return child

    def _running(self, node: str) -> Child | None:
        child = self._mesh.children.get(node) or self._mesh.valkeys.get(node)
        return child if child is not None and child.alive else None

    def _kill(self, fault: Fault) -> Undo:
        node = _node(fault)
        self._end(node)
        self._lab.publish()
        return Undo(lambda: self._start([node]), _nothing)

    def _restart(self, fault: Fault) -> Undo:
        self._end(_node(fault))
        self._start([_node(fault)])
        return Undo()

    def _end(self, node: str) -> None:
        self._killed[node] = self._mesh.kill(node)
        self._frozen.pop(node, None)
        self._later.pop(node, None)

    def _start(self, nodes: Iterable[str]) -> None:
        """Start what was killed, once it is gone: its port and its disk are free then."""
        valkeys = {plan.name for plan in self._mesh.plan.valkeys}
        for node in nodes:
            if (gone := self._killed.pop(node, None)) is not None and not gone.wait(ENDED_S):
                raise ConfigError(f"{node} was killed and has not ended")
            if node in valkeys:
                self._mesh.start_valkey(node)
            else:
                self._mesh.start_node(node)
            self.back.add(node)
        self._lab.publish()

    def _freeze(self, fault: Fault) -> Undo:
        node = _node(fault)
        child = self._frozen[node] = self._child(node)
        if not child.freeze(FROZEN_S):
            child.thaw()
            del self._frozen[node]
            raise PeerError(f"freeze: {node} still runs {FROZEN_S:g} s after its signal")

        def thaw() -> None:
            child.thaw()
            if self._frozen.get(node) is child:
                del self._frozen[node]
            for tell in self._later.pop(node, ()):
                tell()
            self.back.add(node)

        return Undo(thaw)

    def _slow(self, fault: Fault) -> Undo:
        node = _node(fault)
        assert fault.share is not None
        group = limit_cpu(self._group(node), self._child(node).process.pid, fault.share)
        return Undo(lambda: self._unlimited(node, group))

    def _memory(self, fault: Fault) -> Undo:
        node, child = _node(fault), self._child(_node(fault))
        assert fault.more_mb is not None
        more_bytes = int(fault.more_mb * (1 << 20))
        group = limit_memory(self._group(node), child.process.pid, more_bytes)
        self._mesh.may_end.add(node)

        def clean() -> None:
            self._unlimited(node, group)
            if child.alive or self._mesh.children.get(node) is not child:
                self._mesh.may_end.discard(node)

        def back() -> None:
            clean()
            if not child.alive and node not in self._killed and self._running(node) is None:
                self._start([node])
                self._mesh.may_end.discard(node)

        return Undo(back, clean)

    def _unlimited(self, node: str, group: Group) -> None:
        group.close()
        self.back.add(node)

    def _group(self, node: str) -> str:
        return name_of(self._lab.run.name, node)

    # What a node does to itself.

    def _switch(self, fault: Fault) -> Undo:
        node, child = _node(fault), self._child(_node(fault))
        self._tell(node, fault.do)
        return Undo(lambda: self._untell(node, child, fault.do, on=False))

    def _clock(self, fault: Fault) -> Undo:
        node, child = _node(fault), self._child(_node(fault))
        self._tell(node, fault.do, shift_s=fault.shift_s)
        return Undo(lambda: self._untell(node, child, fault.do, shift_s=0))

    def _tell(self, node: str, do: str, **more: object) -> None:
        path = faults_file(self._lab.run, node)
        with Control(path, whose=node, answer_s=DOOR_S) as door:
            door.ask(do, **more)

    def _untell(self, node: str, child: Child, do: str, **more: object) -> None:
        """Now, or when it is thawed; a process that has ended needs no telling."""
        if self._running(node) is not child:
            return
        if node in self._frozen:
            self._later.setdefault(node, []).append(lambda: self._tell(node, do, **more))
            return
        self._tell(node, do, **more)
        self.back.add(node)

    # Links.

    def _link(self, fault: Fault) -> Undo:
        assert fault.source is not None
        assert fault.target is not None
        link = None if fault.link is None else dict(fault.link)
        self._cut(fault.what, [Cut(fault.source, fault.target, fault.one_way, link)])

        def back() -> None:
            self._mend(fault.what)
            self.back.update(struck(fault, self._lab.topology))

        return Undo(back)

    def _region(self, fault: Fault) -> Undo:
        nodes = struck(fault, self._lab.topology)
        running = [node for node in nodes if self._running(node) is not None]
        self._cut(fault.what, [Cut(node, EVERYONE, False) for node in nodes])
        for node in running:
            self._end(node)
        self._lab.publish()

        def back() -> None:
            self._start(running)
            self._mend(fault.what)

        return Undo(back, lambda: self._mend(fault.what))

    def _cut(self, what: str, cuts: list[Cut]) -> None:
        with self._lab.network.control() as control:
            for cut in cuts:
                _apply(control, cut)
        self._cuts[what] = cuts

    def _mend(self, what: str) -> None:
        """As the topology says again, but for what other faults still do to the same links."""
        with self._lab.network.control() as control:
            for cut in self._cuts.pop(what):
                do = "heal" if cut.link is None else "reset"
                control.change(do, cut.source, cut.target, one_way=cut.one_way)
            for others in self._cuts.values():
                for cut in others:
                    _apply(control, cut)

    # Disks and indexes.

    def _disk(self, fault: Fault) -> Undo:
        disk = self._lab.disks.get(_node(fault))
        if disk is None:
            raise ConfigError(
                f"disk: {fault.node} has no disk of its own: that needs root, and disk_mb in the "
                "topology"
            )
        fill(disk.path)
        return Undo(lambda: free(disk.path))

    def _corrupt(self, fault: Fault) -> Undo:
        corrupt(self._kv_directory(_node(fault)), fault.how, fault.blocks, self._rng)
        return Undo()

    def _kv_directory(self, node: str) -> Path:
        given = self._mesh.plan.node(node).settings.get("kv", {}).get("disk", {}).get("directory")
        if given is None:
            raise ConfigError(
                f"corrupt: {node} keeps no blocks on a disk: disk_mb, or settings.kv.disk.directory"
            )
        path, disk = Path(given), self._lab.disks.get(node)
        own = disk_directory(self._lab.run, node)
        if disk is not None and path.is_relative_to(own):
            return disk.path / path.relative_to(own)
        return path

    def _flush(self, fault: Fault) -> Undo:
        with self._lab.inside(OPERATOR):
            flush(self._mesh.plan.valkey_named(_node(fault)), self._lab.run)
        return Undo()


def leave_nothing(undo: Undo) -> None:
    """Leave nothing of a fault, whatever state it is in."""
    with suppress(FirstlightError, OSError):
        (undo.clean or undo.back)()


def _apply(control: Control, cut: Cut) -> None:
    do = "partition" if cut.link is None else "set"
    control.change(do, cut.source, cut.target, one_way=cut.one_way, link=cut.link)


def _node(fault: Fault) -> str:
    assert fault.node is not None
    return fault.node
