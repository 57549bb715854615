"""Who is in the mesh: a lease a node, renewed by its own word only.

    report (node, incarnation, seq) ─► the highest pair wins ─► live for 5 s from when it was heard
                                                               suspect after 1.2 s of silence

Reports may come by several ways, doubled and in any order: the map depends on the set of them
alone. A node that leaves says so; that word is kept for a lease, so that an older report which
comes late does not bring the node back. Of two processes with one name the later start wins, and
what the other says changes nothing. A report whose figures cannot be leaves the last good ones in
their place: that node lives, but nobody decides by what it says now.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from firstlight.shared.claims import another_process, implausible, order, supersedes
from firstlight.shared.types import NodeInfo, Report

LEASE_S = 5.0
SUSPECT_S = 1.2
"""Four words in a row that did not come. With what a look and a view take, all nodes know of it
within 1.6 s."""
LATE_S = 0.5
"""Looks that are further apart say that this process stood still, not that nodes were silent."""
NODES_MAX = 4096
RTTS_MAX = 1024


class Fate(StrEnum):
    """What became of a report."""

    TAKEN = "taken"
    STALE = "stale"
    IGNORED = "ignored"
    """Its figures cannot be; the last good ones stay."""
    DUPLICATE = "duplicate"
    """Another process goes by that name, and started later."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a report, and whether a node came, left or started anew by it."""

    fate: Fate
    changed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Lease:
    """The newest good word of a node, and when the node was heard here."""

    report: Report
    heard_at: float


class Membership:
    """The leases of all nodes. `expire` at least every 0.5 s; reading changes nothing."""

    def __init__(self, *, lease_s: float = LEASE_S, nodes_max: int = NODES_MAX) -> None:
        self._lease_s = lease_s
        self._nodes_max = nodes_max
        self._leases: dict[str, Lease] = {}
        self._looked_at: float | None = None

    def report(self, report: Report, now: float) -> Outcome:
        """Take a node's word, if it is newer than what is known."""
        name = report.info.node
        if len(report.rtt_ms) > RTTS_MAX:
            return Outcome(Fate.REFUSED, False, f"{name}: {len(report.rtt_ms)} round trips")
        known = self._leases.get(name)
        if known is None and len(self._leases) >= self._nodes_max:
            return Outcome(Fate.REFUSED, False, f"{name}: {self._nodes_max} nodes are the most")
        if known is not None and not supersedes(report, known.report):
            if another_process(report, known.report) and not report.leaving:
                return Outcome(Fate.DUPLICATE, False, f"two processes call themselves {name}")
            return Outcome(Fate.STALE, False, f"{name}: {order(report)} is not news")
        if (wrong := implausible(report)) and not report.leaving:
            self.heard(report.info, report.seq, now)
            return Outcome(Fate.IGNORED, False, f"{name}: {wrong}")
        self._leases[name] = Lease(report, now)
        before = known.report if known is not None and self._lives(known, now) else None
        return Outcome(Fate.TAKEN, *_change(report, before))

    def heard(self, info: NodeInfo, seq: int, now: float) -> None:
        """A node spoke, but of what it said nothing can be used: only its lease is renewed."""
        known = self._leases.get(info.node)
        if known is not None and known.report.info == info and seq > known.report.seq:
            self._leases[info.node] = Lease(replace(known.report, seq=seq), now)

    def expire(self, now: float) -> tuple[str, ...]:
        """Drop leases that ended; returns the names of nodes that lived until then.

        If this process stood still since the last look, words that came meanwhile are not read
        yet: every lease is given that time.
        """
        late_s = 0.0 if self._looked_at is None else now - self._looked_at - LATE_S
        self._looked_at = now
        if late_s > 0.0:
            self._leases = {
                name: Lease(lease.report, min(now, lease.heard_at + late_s))
                for name, lease in self._leases.items()
            }
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

    def suspects(self, now: float) -> frozenset[str]:
        """Nodes whose lease runs, but that were not heard lately: nothing should count on them."""
        return frozenset(
            name
            for name, lease in self._leases.items()
            if now - lease.heard_at > SUSPECT_S and self._lives(lease, now)
        )

    def well(self, now: float) -> tuple[Report, ...]:
        """The last word of nodes that live and are not suspect: where clients can be sent."""
        suspects = self.suspects(now)
        reports = (lease.report for lease in self.live(now))
        return tuple(report for report in reports if report.info.node not in suspects)

    def _lives(self, lease: Lease, now: float) -> bool:
        return now - lease.heard_at <= self._lease_s and not lease.report.leaving


def _change(report: Report, before: Report | None) -> tuple[bool, str]:
    """(whether others should hear of it at once, what happened)."""
    name = report.info.node
    if report.leaving:
        return before is not None, f"{name} leaves"
    if before is None:
        return True, f"{name} joins"
    if before.info != report.info:
        return True, f"{name} is another process"
    if before.load.draining != report.load.draining:
        return True, f"{name} drains or no longer does"
    return False, f"{name} renews"
