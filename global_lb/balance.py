"""Where each region's work goes, as this replica sees it: `shared.routing.spill`, fed by reports.

Every replica steps, each second, from the rows that are in force: those that edges say they follow,
or its own, where an edge follows it. So one that starts, or that nobody follows, never drifts away
from the one that is followed, and goes on from there when that is gone; and two that saw different
reports never pull at one row, since an edge follows one alone. Sans-IO.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from firstlight.global_lb.distance import Distances, measure
from firstlight.global_lb.membership import Lease
from firstlight.shared.routing.spill import RegionSupply, Row, Table
from firstlight.shared.routing.spill_step import Spill, adopt, step
from firstlight.shared.types import Demand, Load, Report, Role

STEP_EVERY_S = 1.0
ABSURD_TIMES = 10.0
"""At an edge with so many times more work than all cores could do, something is counted wrongly:
one such word would shed all that comes in its region."""
SETTLED_S = 2.5
"""A replica that has just begun has not heard of all nodes yet: it tells no rows."""


class Balance:
    """The rows of one replica. `step` every second."""

    def __init__(self, lb: str, now: float, capacity_of: Callable[[Load], float]) -> None:
        """`capacity_of`: a core's, in prefill-token equivalents a second; 0: not measured yet."""
        self._lb = lb
        self._settles_at = now + SETTLED_S
        self._capacity_of = capacity_of
        self.spill = Spill()
        self.distances = Distances()
        self.reports: tuple[Report, ...] = ()
        """Of the latest step; what an edge cannot mean is in them as it last was."""
        self.absurd: Mapping[str, str] = {}
        """Edges whose present word on their work cannot be, and why."""
        self._demand: Mapping[str, Demand | None] = {}
        """By edge, the last good word."""
        self.table: Table = {}
        """What edges are told; empty while this replica does not know enough."""

    def step(self, leases: Sequence[Lease], suspects: Collection[str], now: float) -> None:
        """Take what was heard, and move the rows."""
        reports: Sequence[Report] = [lease.report for lease in leases]
        self.distances = measure(self.distances, reports)
        supply = supply_of(reports, suspects, self._capacity_of)
        self.reports = reports = self._credible(reports, supply)
        if now < self._settles_at:
            return
        if not any(one.capacity > 0.0 for one in supply.values()):
            return  # no core has measured how fast it is: nothing to share out by
        self.spill = adopt(self.spill, in_force(reports, self._lb))
        demand = demand_of(reports)
        self.spill = step(self.spill, demand, supply, self.distances.pairs, now)
        self.table = self.spill.table

    def _credible(
        self, reports: Sequence[Report], supply: Mapping[str, RegionSupply]
    ) -> tuple[Report, ...]:
        """The reports, with the last good word of an edge in place of one that is absurd."""
        capacity = sum(one.capacity for one in supply.values())
        edges = {r.info.node: r.demand for r in reports if r.info.role is Role.EDGE}
        self.absurd = {
            edge: f"{said.work_per_s:.3g} of work a second, all cores do {capacity:.3g}"
            for edge, said in edges.items()
            if said is not None and said.work_per_s > ABSURD_TIMES * capacity > 0.0
        }
        self._demand = {
            edge: self._demand.get(edge) if edge in self.absurd else said
            for edge, said in edges.items()
        }
        return tuple(
            replace(r, demand=self._demand[r.info.node]) if r.info.node in self.absurd else r
            for r in reports
        )


def demand_of(reports: Collection[Report]) -> dict[str, float]:
    """Work that arrives in each region with an edge, refused work included."""
    demand: dict[str, float] = {}
    for report in reports:
        if report.info.role is Role.EDGE:
            work = 0.0 if report.demand is None else report.demand.work_per_s
            demand[report.info.region] = demand.get(report.info.region, 0.0) + work
    return demand


def supply_of(
    reports: Collection[Report], suspects: Collection[str], capacity_of: Callable[[Load], float]
) -> dict[str, RegionSupply]:
    """What each region's cores can do, and which share of that is well.

    A core that has not measured itself yet counts as the median of those that have.
    """
    cores = [report for report in reports if report.info.role is Role.CORE]
    measured = sorted(c for core in cores if (c := capacity_of(core.load)) > 0.0)
    prior = measured[len(measured) // 2] if measured else 0.0
    whole: dict[str, float] = {}
    well: dict[str, float] = {}
    for core in cores:
        region, capacity = core.info.region, capacity_of(core.load) or prior
        whole[region] = whole.get(region, 0.0) + capacity
        usable = core.info.node not in suspects and not core.load.draining
        well[region] = well.get(region, 0.0) + (capacity if usable else 0.0)
    return {
        region: RegionSupply(capacity, well[region] / capacity if capacity > 0.0 else 0.0)
        for region, capacity in whole.items()
    }


def in_force(reports: Collection[Report], lb: str) -> Table:
    """Rows of origins none of whose edges goes by ours: those that they go by."""
    followed: dict[str, list[tuple[str, str, Row]]] = {}
    for report in reports:
        if report.info.role is Role.EDGE and report.following is not None:
            word = report.following
            followed.setdefault(report.info.region, []).append(
                (word.lb, report.info.node, word.row)
            )
    return {
        origin: min(words, key=lambda word: word[:2])[2]
        for origin, words in followed.items()
        if all(word[0] != lb for word in words)
    }


def row_words(table: Table, reasons: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """The rows as people read them."""
    return {
        origin: {
            "shares": {region: round(share, 4) for region, share in row.fractions},
            "shed": round(row.shed, 4),
            "reason": reasons.get(origin, ""),
        }
        for origin, row in sorted(table.items())
    }
