"""Who is in the mesh: a lease a node, renewed by its own word only.

    report (node, incarnation, seq) ─► the highest pair wins ─► live for 5 s from when it was heard

Reports may come by several ways, doubled and in any order: the map depends on the set of them
alone. A node that leaves says so; that word is kept for a lease, so that an older report which
comes late does not bring the node back. Of two processes with one name the later start wins.
"""

from dataclasses import dataclass
from enum import StrEnum

from firstlight.shared.types import Report

LEASE_S = 5.0
NODES_MAX = 4096
RTTS_MAX = 1024


class Fate(StrEnum):
    """What became of a report."""

    TAKEN = "taken"
    STALE = "stale"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a report, and whether a node came, left or started anew by it."""

    fate: Fate
    changed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Lease:
    """The newest word of a node, and when it was heard here."""

    report: Report
    heard_at: float


class Membership:
    """The leases of all nodes. `expire` at least every second; reading changes nothing."""

    def __init__(self, *, lease_s: float = LEASE_S, nodes_max: int = NODES_MAX) -> None:
        self._lease_s = lease_s
        self._nodes_max = nodes_max
        self._leases: dict[str, Lease] = {}

    def report(self, report: Report, now: float) -> Outcome:
        """Take a node's word, if it is newer than what is known."""
        name = report.info.node
        if len(report.rtt_ms) > RTTS_MAX:
            return Outcome(Fate.REFUSED, False, f"{name}: {len(report.rtt_ms)} round trips")
        known = self._leases.get(name)
        if known is None and len(self._leases) >= self._nodes_max:
            return Outcome(Fate.REFUSED, False, f"{name}: {self._nodes_max} nodes are the most")
        if known is not None and order(report) <= order(known.report):
            return Outcome(Fate.STALE, False, f"{name}: {order(report)} is not news")
        self._leases[name] = Lease(report, now)
        before = known.report if known is not None and self._lives(known, now) else None
        if report.leaving:
            return Outcome(Fate.TAKEN, before is not None, f"{name} leaves")
        if before is None:
            return Outcome(Fate.TAKEN, True, f"{name} joins")
        if before.info != report.info:
            return Outcome(Fate.TAKEN, True, f"{name} is another process, or says another thing")
        if before.load.draining != report.load.draining:
            return Outcome(Fate.TAKEN, True, f"{name} drains or no longer does")
        return Outcome(Fate.TAKEN, False, f"{name} renews")

    def expire(self, now: float) -> tuple[str, ...]:
        """Drop leases that ended; returns the names of nodes that lived until then."""
        ended = [
            name for name, lease in self._leases.items() if now - lease.heard_at > self._lease_s
        ]
        gone = tuple(name for name in ended if not self._leases[name].report.leaving)
        for name in ended:
            del self._leases[name]
        return gone

    def live(self, now: float) -> tuple[Lease, ...]:
        """Leases of nodes that live, by name."""
        return tuple(lease for _, lease in sorted(self._leases.items()) if self._lives(lease, now))

    def known(self, now: float) -> tuple[Lease, ...]:
        """As `live`, and nodes that have said that they leave, so that others hear of it."""
        return tuple(
            lease
            for _, lease in sorted(self._leases.items())
            if now - lease.heard_at <= self._lease_s
        )

    def _lives(self, lease: Lease, now: float) -> bool:
        return now - lease.heard_at <= self._lease_s and not lease.report.leaving


def order(report: Report) -> tuple[int, int]:
    """What orders the reports of one node."""
    return report.info.incarnation, report.seq
