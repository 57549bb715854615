"""Which edges a client should try, nearest first. Sans-IO.

    measured by the client itself > agreed on by its network > the same region, as edges measured
    > distance from a city > distance from a country > unknown

Only the first two are measurements of the client's way; distance is a prior. The second edge of a
list is the nearest in another failure domain than the first, so that nobody races two that fail
together.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from math import inf

from firstlight.shared.routing.geo import Place, distance_km, light_rtt_ms, prior_between_ms
from firstlight.shared.types import NodeInfo, Report, Role

REDIRECT_HANDSHAKE_RTTS = 2.0
"""Round trips to the nearer edge that a redirect costs: TCP and TLS; QUIC takes one less."""
REDIRECT_SAVES_MS_MIN = 20.0
"""Less is within what a prior is wrong by."""


class RttFrom(StrEnum):
    """What an expected round trip rests on, best first."""

    MEASURED = "measured"
    REPORTED = "reported"
    CORES = "cores"
    CITY = "city"
    COUNTRY = "country"
    UNKNOWN = "unknown"


_WORTH = {kind: i for i, kind in enumerate(RttFrom)}
CERTAIN = frozenset({RttFrom.MEASURED, RttFrom.REPORTED, RttFrom.CITY})
"""What a client may be sent elsewhere by: a country is too large."""


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge that lives."""

    info: NodeInfo
    place: Place | None
    """None if nothing is known, or what it says cannot be."""
    core_rtts: tuple[tuple[str, float], ...] = ()
    """(region of a core, ms): what this edge measures."""

    @property
    def domain(self) -> str:
        """Edges of one domain fail together."""
        return self.info.failure_domain or self.info.region


@dataclass(frozen=True, slots=True)
class Client:
    """What is known of who asks."""

    place: Place | None = None
    region: str | None = None
    """As asked for, not believed to be known."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """edge ─► ms, by the client itself."""
    reported: Mapping[str, float] = field(default_factory=dict)
    """edge ─► ms, agreed on by its network."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """An edge with the round trip to expect, and why."""

    edge: Edge
    rtt_ms: float | None
    rtt_from: RttFrom


def rank(edges: Iterable[Edge], client: Client) -> tuple[Ranked, ...]:
    """All edges, nearest first; the second in another failure domain than the first, if any is."""
    ranked = sorted((_expected(edge, client) for edge in edges), key=partial(_key, client))
    return tuple(_apart(ranked))


def redirect_target(
    edges: Collection[Edge], client: Client, here: str, *, already: bool
) -> Ranked | None:
    """The edge to send a client on to, or None: the common case, found without a look at others.

    Going there costs the round trips of a handshake with the nearer edge; so it is worth it only if
    each request after that saves more. Both round trips must be known better than by country, and
    whoever was sent on once stays.
    """
    own = next((edge for edge in edges if edge.info.node == here), None)
    if already or own is None:
        return None
    at = _expected(own, client)
    if not _certain(at) or _or_inf(at.rtt_ms) <= REDIRECT_SAVES_MS_MIN:
        return None
    certain = [one for edge in edges if _certain(one := _expected(edge, client))]
    there = min(certain, key=partial(_key, client))
    saves_ms = _or_inf(at.rtt_ms) - _or_inf(there.rtt_ms)
    worth_ms = max(REDIRECT_SAVES_MS_MIN, REDIRECT_HANDSHAKE_RTTS * _or_inf(there.rtt_ms))
    return there if saves_ms > worth_ms else None


def _certain(one: Ranked) -> bool:
    return one.rtt_ms is not None and one.rtt_from in CERTAIN


def edges_from(
    reports: Iterable[Report], place_of: Callable[[NodeInfo], Place | None]
) -> tuple[Edge, ...]:
    """Edges of these reports that take clients, with a place that their round trips allow."""
    told = tuple(reports)
    sites: dict[Place | None, int] = {}  # cores stand together: a great circle for each of these
    cores = {
        report.info.node: (report.info.region, sites.setdefault(place_of(report.info), len(sites)))
        for report in told
        if report.info.role is Role.CORE
    }
    edges = []
    for report in told:
        if report.info.role is not Role.EDGE or report.load.draining or report.leaving:
            continue
        known = [(*cores[core], ms) for core, ms in report.rtt_ms if core in cores]
        trips: list[list[float]] = [[] for _ in sites]
        for _, site, ms in known:
            trips[site].append(ms)
        place = believed_place(place_of(report.info), zip(sites, trips, strict=True))
        edges.append(Edge(report.info, place, tuple((region, ms) for region, _, ms in known)))
    return tuple(edges)


def believed_place(
    said: Place | None, core_rtts: Iterable[tuple[Place | None, Sequence[float]]]
) -> Place | None:
    """Where a node is, unless most of its own round trips could not be from there.

    `core_rtts`: places where cores stand, and the round trips measured to those. Light is the
    judge, so only a place that is impossible is refused.
    """
    if said is None:
        return None
    judged = impossible = 0
    for core, trips in core_rtts:
        if core is not None and trips:
            floor_ms = light_rtt_ms(distance_km(said, core))
            judged += len(trips)
            impossible += sum(ms < floor_ms for ms in trips)
    return None if 2 * impossible > judged else said


def _expected(edge: Edge, client: Client) -> Ranked:
    node = edge.info.node
    if node in client.measured:
        return Ranked(edge, client.measured[node], RttFrom.MEASURED)
    if node in client.reported:
        return Ranked(edge, client.reported[node], RttFrom.REPORTED)
    if client.region is not None:
        from_cores = [ms for region, ms in edge.core_rtts if region == client.region]
        if from_cores:
            return Ranked(edge, min(from_cores), RttFrom.CORES)
    if client.place is None or edge.place is None:
        return Ranked(edge, None, RttFrom.UNKNOWN)
    exact = client.place.exact and edge.place.exact
    ms = prior_between_ms(client.place, edge.place)
    return Ranked(edge, ms, RttFrom.CITY if exact else RttFrom.COUNTRY)


def _key(client: Client, one: Ranked) -> tuple[bool, float, int, str]:
    elsewhere = client.region is not None and one.edge.info.region != client.region
    measured = one.rtt_from is RttFrom.MEASURED
    worth = _WORTH[one.rtt_from]
    return elsewhere and not measured, _or_inf(one.rtt_ms), worth, one.edge.info.node


def _apart(ranked: Sequence[Ranked]) -> Iterable[Ranked]:
    if len(ranked) < 3:
        return ranked
    first = ranked[0]
    other = next((one for one in ranked[1:] if one.edge.domain != first.edge.domain), None)
    if other is None or other is ranked[1]:
        return ranked
    return [first, other, *(one for one in ranked[1:] if one is not other)]


def _or_inf(ms: float | None) -> float:
    return inf if ms is None else ms
