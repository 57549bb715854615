"""How far regions are from each other, as edges have measured it. Sans-IO.

An edge's word counts only if it can be: no node is near to two regions that are far apart. Whose
round trips to two regions are together less than a third of what others measure between these has
said that it is everywhere; its last good word stays in place, and nobody is sent there for it. Who
says that all others are far away changes little: of two words the lesser counts.

    pairs[o, r] = low median over the edges of o of (the least round trip to a core of r)
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median_low

from firstlight.shared.types import Report, Role

IMPOSSIBLE_SHARE = 1.0 / 3.0
"""Of the way between two regions: detours of the Internet can make a way over a third node shorter,
but not so much."""
IMPOSSIBLE_MS_MIN = 10.0
NEAREST = 8
"""Regions of an edge that are looked at, the nearest: a node that is honestly far lies to nobody's
advantage."""

Near = Mapping[str, float]
"""Region → round trip, ms."""


@dataclass(frozen=True, slots=True)
class Distances:
    """What can be believed of all words so far."""

    near: Mapping[str, Near] = field(default_factory=dict)
    """By edge, its last good word."""
    pairs: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(origin, region) → ms."""
    impossible: Mapping[str, str] = field(default_factory=dict)
    """Edges whose present word cannot be, and why."""


def measure(last: Distances, reports: Iterable[Report]) -> Distances:
    """The distances of now. What nodes that are gone have said is forgotten."""
    reports = tuple(reports)
    region_of = {r.info.node: r.info.region for r in reports if r.info.role is Role.CORE}
    edges = {r.info.node: r.info.region for r in reports if r.info.role is Role.EDGE}
    said = {r.info.node: _near(r, region_of) for r in reports if r.info.role is Role.EDGE}
    between = _between(said, edges)
    impossible = {}
    for edge in sorted(said):
        if why := _impossible(edges[edge], said[edge], between):
            impossible[edge] = why
    good = {
        edge: last.near.get(edge, {}) if edge in impossible else near for edge, near in said.items()
    }
    return Distances(good, _pairs(good, edges), impossible)


def _near(report: Report, region_of: Mapping[str, str]) -> Near:
    """Regions by the least round trip to one of their cores."""
    near: dict[str, float] = {}
    for core, ms in report.rtt_ms:
        region = region_of.get(core)
        if region is not None and ms < near.get(region, float("inf")):
            near[region] = ms
    return near


_Between = Mapping[tuple[str, str], Sequence[float]]
"""Two regions in order of name → what edges of one of them measured to the other, ms, ascending."""


def _between(said: Mapping[str, Near], edges: Mapping[str, str]) -> _Between:
    between: dict[tuple[str, str], list[float]] = {}
    for edge, near in said.items():
        home = edges[edge]
        for region, ms in near.items():
            if region != home:
                between.setdefault((min(home, region), max(home, region)), []).append(ms)
    return {pair: sorted(measured) for pair, measured in between.items()}


def _impossible(home: str, near: Near, between: _Between) -> str:
    nearest = sorted(sorted(near, key=lambda region: (near[region], region))[:NEAREST])
    for one, other in combinations(nearest, 2):
        own = near[other] if one == home else near[one] if other == home else None
        way_ms, over_ms = _of_others(between.get((one, other), ()), own), near[one] + near[other]
        if way_ms is None:
            continue
        if over_ms < way_ms * IMPOSSIBLE_SHARE and way_ms - over_ms > IMPOSSIBLE_MS_MIN:
            return (
                f"{near[one]:.3g} ms from {one} and {near[other]:.3g} ms from {other}, "
                f"which are {way_ms:.3g} ms apart"
            )
    return ""


def _of_others(measured: Sequence[float], own: float | None) -> float | None:
    """The low median without the edge's own word: sorted once for all edges, which may be many."""
    count = len(measured) - (own is not None)
    if count <= 0:
        return None
    middle = (count - 1) // 2
    return measured[middle + (own is not None and middle >= bisect_left(measured, own))]


def _pairs(good: Mapping[str, Near], edges: Mapping[str, str]) -> dict[tuple[str, str], float]:
    heard: dict[tuple[str, str], list[float]] = {}
    for edge, near in good.items():
        for region, ms in near.items():
            heard.setdefault((edges[edge], region), []).append(ms)
    return {pair: median_low(values) for pair, values in heard.items()}
