"""Faults of a running laboratory: done, noted for the judge before they are, and taken back.

Whoever runs a scenario calls `inject` at its time, and `end` when the fault is over; `lab up` does
it for who writes `firstlight lab fault`. How each one is done is in `acts`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from threading import RLock
from typing import Any

from firstlight.infra.judge.run_file import RunRecord
from firstlight.infra.lab.acts import Acts, Undo, leave_nothing
from firstlight.infra.lab.fault_plan import Fault, check, parse, struck
from firstlight.infra.lab.lab import Lab
from firstlight.infra.lab.topology import OPERATOR
from firstlight.infra.valkey import wait_answering
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError

OF_A_PROCESS = frozenset({"freeze", "slow", "memory", "hang", "refuse", "silent", "clock"})
"""What ends with the process that it was done to."""
APART = frozenset({"kill", "region", "freeze", "partition", "link"})
"""While these last, nobody can expect their nodes to be there."""


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that was done."""

    fault: Fault
    targets: tuple[str, ...]
    """Nodes that it struck."""
    number: int | None
    """In the run's record."""


class Faults:
    """Makes faults in one laboratory. From any thread, one at a time."""

    def __init__(self, lab: Lab, record: RunRecord | None, rng: Random) -> None:
        self._lab, self._record = lab, record
        self._acts = Acts(lab, rng)
        self._active: dict[str, tuple[Injected, Undo]] = {}
        """By `Fault.what`, in the order in which they were done."""
        self._lock = RLock()

    @property
    def active(self) -> tuple[Injected, ...]:
        """Those that last."""
        with self._lock:
            return tuple(injected for injected, _ in self._active.values())

    def inject(self, fault: Fault) -> Injected:
        """Do it. Raises `ConfigError` for what cannot be done, or is done already."""
        with self._lock:
            check(fault, self._lab.topology)
            if fault.what in self._active:
                raise ConfigError(f"{fault.what}: it is so already")
            self._acts.possible(fault)
            targets = struck(fault, self._lab.topology)
            number = self._note(fault, targets)
            injected = Injected(fault, targets, number)
            try:
                undo = self._acts.do(fault)
            except BaseException:
                if self._record is not None and number is not None:
                    self._record.failed(number)
                raise
            if fault.lasts:
                self._active[fault.what] = (injected, undo)
            if fault.do in ("kill", "restart", "region"):
                self._forget(targets)
            return injected

    def end(self, injected: Injected) -> None:
        """Take it back; harmless if it has been. Raises `ConfigError` or `PeerError`."""
        with self._lock:
            held, undo = self._active.get(injected.fault.what, (None, Undo()))
            if held is not injected:
                return
            starts = injected.fault.do in ("kill", "region")
            if starts:  # what is started now, no fault excuses any more
                self._over(injected)
            undo.back()
            del self._active[injected.fault.what]
            if not starts:
                self._over(injected)

    def wait_back(self, timeout_s: float) -> None:
        """Wait until everything that was brought back serves again.

        Raises `ConfigError` or `PeerError` that names who does not.
        """
        deadline, mesh = monotonic_s() + timeout_s, self._lab.mesh
        with self._lock:
            back, self._acts.back = self._acts.back, set()
            away = {node for one in self.active if one.fault.do in APART for node in one.targets}
            away |= {name for name in mesh.plan.names if not self._acts.runs(name)}
        if not back:
            return
        nodes = [node for node in mesh.plan.names if node in back - away and node in mesh.children]
        mesh.wait_ready(nodes, timeout_s=timeout_s)
        with self._lab.inside(OPERATOR):
            for plan in mesh.plan.valkeys:
                if plan.name in back - away:
                    left_s = max(0.0, deadline - monotonic_s())
                    wait_answering(mesh.valkeys[plan.name], plan, left_s)
            if mesh.plan.names[0] not in away:  # the first load balancer is who is asked
                mesh.wait_linked(max(0.0, deadline - monotonic_s()), away)
        mesh.running.write(mesh.state)
        self._lab.publish()

    def close(self) -> None:
        """Take back all that is not, but start nothing; leave nothing. Harmless when repeated."""
        with self._lock:
            while self._active:
                _, (injected, undo) = self._active.popitem()
                leave_nothing(undo)
                self._over(injected)

    def command(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Do what somebody says at the laboratory's door: a fault, or `"end": true` with one.

        Raises `ConfigError`.
        """
        wanted = {key: value for key, value in said.items() if key != "end"}
        if not said.get("end", False):
            fault = parse(wanted)
            if fault.for_s is not None:
                raise ConfigError("for_s: nobody keeps time here; --end takes a fault back")
            return {"struck": list(self.inject(fault).targets)}
        for injected in self.active:
            if _means(wanted, injected.fault):
                self.end(injected)
                return {"struck": list(injected.targets)}
        lasting = ", ".join(one.fault.what for one in self.active) or "none"
        raise ConfigError(f"no such fault lasts: {lasting}")

    def _note(self, fault: Fault, targets: tuple[str, ...]) -> int | None:
        if self._record is None:
            return None
        return self._record.fault(fault.do, *targets, within_s=fault.within_s, lasting=fault.lasts)

    def _over(self, injected: Injected) -> None:
        if self._record is not None and injected.number is not None and injected.fault.lasts:
            self._record.over(injected.number)

    def _forget(self, nodes: tuple[str, ...]) -> None:
        """What was done to processes that are gone is over."""
        for what, (injected, undo) in list(self._active.items()):
            if injected.fault.do in OF_A_PROCESS and injected.fault.node in nodes:
                del self._active[what]
                leave_nothing(undo)
                self._over(injected)


def _means(wanted: Mapping[str, Any], fault: Fault) -> bool:
    told = fault.model_dump(by_alias=True)
    return all(told.get(key) == value for key, value in wanted.items())
