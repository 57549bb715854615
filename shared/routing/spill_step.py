"""How the shares in force follow their target, second by second. All state is a value.

A row moves towards its target by one factor, so that its sum stays 1: at most 0.10 a second in
total, and home gains at most 0.02. Between the target for the demand as it is and that for 15 %
more home's share stays as it is, so that demand that trembles moves nothing; nor is a split among
others moved that is off by less than 5 % of the row, and of each region's capacity. Only what is
small for its home, less than a tenth of what that can do, goes home at once: it swamps nobody, and
a mesh that has just begun would ask its far regions first for most of a minute.

What a dead region had is given away at once. One that returns begins at 10 % of its capacity, which
grows for 60 s: its caches are cold.

Nonsense in (NaN, negative, absurd) leaves what was last good in its place, figure by figure, so
that one liar cannot stop the others from being heard. A round trip is taken anew only if it differs
by more than 5 ms and a tenth: equally far regions do not change places with each measurement.

A replica that hears another with a lower name takes over its rows (`adopt`) before each step: it
never drifts away, and goes on from there if the other is gone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from firstlight.shared.routing.spill import (
    FILL,
    REGIONS_MAX,
    SHARE_MIN,
    Pairs,
    RegionSupply,
    Row,
    Table,
    exact,
    good_amount,
    good_rtt,
    good_supply,
    row_of,
    sane,
    water_fill,
)

AWAY_PER_S = 0.10
BACK_PER_S = 0.02
ELAPSED_S_MAX = 2.0
"""A step that comes late moves no more than this long allows."""
HYSTERESIS = 0.15
"""Work leaves home at 0.85 of its capacity, and returns only when 15 % more would fit, at 0.74. The
10 s average of 130 requests a second that come by chance stays within 15 % for minutes."""
SPLIT_MIN = 0.05
SMALL = 0.10
"""Of its home's capacity, as grown: an origin with less demand goes home at once."""
RETURN_SHARE = 0.10
RETURN_S = 60.0
RTT_SAME_MS, RTT_SAME_SHARE = 5.0, 0.1

_SHED = ""
"""Stands for what is shed, where shares are computed with."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Spill:
    """The shares in force, and what the next step needs to know."""

    table: Table = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why each row is as it is."""
    ignored: tuple[str, ...] = ()
    """Figures of the latest step that were nonsense."""
    at: float | None = None
    demand: Mapping[str, float] = field(default_factory=dict)
    """Last good ones, as are the next two."""
    supply: Mapping[str, RegionSupply] = field(default_factory=dict)
    rtt_ms: Pairs = field(default_factory=dict)
    dead: frozenset[str] = frozenset()
    """Regions that could do something once, and nothing now."""
    returned: Mapping[str, float] = field(default_factory=dict)
    """Regions that were dead, and since when they are no more."""


def step(
    last: Spill,
    demand: Mapping[str, float],
    supply: Mapping[str, RegionSupply],
    rtt_ms: Pairs,
    now: float,
) -> Spill:
    """The shares of now. Never raises: from nonsense alone come the last ones again."""
    if max(len(demand), len(supply)) > REGIONS_MAX:
        return replace(last, ignored=(f"{max(len(demand), len(supply))} regions",), at=now)
    ignored: list[str] = []
    demand = _good(demand, last.demand, good_amount, "demand", ignored)
    supply = _good(supply, last.supply, good_supply, "supply", ignored)
    rtt_ms = _steady(_good(rtt_ms, last.rtt_ms, good_rtt, "round trip", ignored), last.rtt_ms)
    dead, returned = _lives(last, supply, now)
    grown = {
        region: replace(one, capacity=one.capacity * _growth(returned.get(region), now))
        for region, one in supply.items()
    }
    elapsed_s = 0.0 if last.at is None else min(ELAPSED_S_MAX, max(0.0, now - last.at))
    capacity = {region: one.effective for region, one in grown.items()}
    goals = water_fill(demand, grown, rtt_ms)
    # Who lingers away from home needs room elsewhere.
    room = sum(demand.values()) * (1.0 + HYSTERESIS) <= sum(capacity.values())
    moved: dict[str, tuple[Row, str]] = {}
    for origin, goal in goals.items():
        before = last.table.get(origin)
        if before is None:
            moved[origin] = goal, "new"
            continue
        least = goal.share(origin)
        if room and demand[origin] > 0.0:
            filled = FILL * capacity.get(origin, 0.0) / (demand[origin] * (1.0 + HYSTERESIS))
            least = min(least, filled)
        aim = _Aim(origin, goal, least, demand[origin])
        moved[origin] = _move(before, aim, capacity, elapsed_s)
    return Spill(
        table={origin: row for origin, (row, _) in moved.items()},
        reasons={origin: reason for origin, (_, reason) in moved.items()},
        ignored=tuple(ignored),
        at=now if last.at is None else max(now, last.at),
        demand=demand,
        supply=supply,
        rtt_ms=rtt_ms,
        dead=dead,
        returned=returned,
    )


def adopt(last: Spill, heard: Table) -> Spill:
    """The rows of another replica in place of our own, as far as they are sane."""
    rows = {origin: exact(row) for origin, row in heard.items() if sane(row)}
    table = {**last.table, **rows}
    return last if len(table) > REGIONS_MAX else replace(last, table=table)


@dataclass(frozen=True, slots=True)
class _Aim:
    """Where a row should be."""

    home: str
    goal: Row
    least: float
    """Of home's share: below it home has room for more, even if the demand is underestimated."""
    demand: float


def _move(
    before: Row, aim: _Aim, capacity: Mapping[str, float], elapsed_s: float
) -> tuple[Row, str]:
    """The row after `elapsed_s`, and why."""
    goal = _shares(aim.goal)
    now = _shares(before)
    reason = ""
    lost = {name: share for name, share in now.items() if name and not capacity.get(name)}
    if lost:
        now = _given_away(now, lost, goal)
        reason = f"{', '.join(sorted(lost))} dead, "
    wanted = _wanted(now, goal, aim)
    names = sorted(now.keys() | wanted.keys())
    change = {name: wanted.get(name, 0.0) - now.get(name, 0.0) for name in names}
    distance = sum(abs(part) for part in change.values()) / 2
    gain = change.get(aim.home, 0.0)
    shed_less = max(0.0, -change.get(_SHED, 0.0))
    if distance <= SHARE_MIN or not _worth(change, aim, capacity, distance):
        return _row(now), reason + "held"
    factor = min(1.0, AWAY_PER_S * elapsed_s / distance)
    if gain > SHARE_MIN and aim.demand <= SMALL * capacity.get(aim.home, 0.0):
        factor = 1.0
    elif gain > shed_less:  # what was shed may go home as fast as it may go away
        factor = min(factor, BACK_PER_S * elapsed_s / (gain - shed_less))
    moved = {name: now.get(name, 0.0) + factor * part for name, part in change.items()}
    way = "back home" if gain > 0.0 else "away from home" if gain < 0.0 else "among others"
    return _row(moved), f"{reason}{factor * distance:.3f} of {distance:.3f} {way}"


def _given_away(
    now: Mapping[str, float], lost: Mapping[str, float], goal: Mapping[str, float]
) -> dict[str, float]:
    """The shares without those of dead regions, which go to whoever has less than its goal."""
    kept = {name: share for name, share in now.items() if name not in lost}
    short = {name: max(0.0, share - kept.get(name, 0.0)) for name, share in goal.items()}
    factor = sum(lost.values()) / sum(short.values())
    for name, part in short.items():
        kept[name] = kept.get(name, 0.0) + factor * part
    return kept


def _wanted(now: Mapping[str, float], goal: Mapping[str, float], aim: _Aim) -> Mapping[str, float]:
    """The goal, but home's share stays where it is between the least and the goal's."""
    if now.get(_SHED, 0.0) > goal.get(_SHED, 0.0) + SHARE_MIN:
        return goal
    most = goal.get(aim.home, 0.0)
    home = min(max(now.get(aim.home, 0.0), aim.least), most)
    source = goal if most < 1.0 - SHARE_MIN else now
    others = {name: share for name, share in source.items() if name != aim.home}
    total = sum(others.values())
    if total <= SHARE_MIN:
        return goal
    return {aim.home: home, **{n: share / total * (1.0 - home) for n, share in others.items()}}


def _worth(
    change: Mapping[str, float], aim: _Aim, capacity: Mapping[str, float], distance: float
) -> bool:
    """Whether a change of more than a split among others, or one that matters to a region."""
    if distance > SPLIT_MIN or abs(change.get(aim.home, 0.0)) > SHARE_MIN:
        return True
    return any(
        abs(part) * aim.demand > SPLIT_MIN * capacity.get(name, 0.0)
        for name, part in change.items()
    )


def _shares(row: Row) -> dict[str, float]:
    return {**dict(row.fractions), **({_SHED: row.shed} if row.shed > 0.0 else {})}


def _row(shares: Mapping[str, float]) -> Row:
    regions = {name: max(0.0, share) for name, share in shares.items() if name}
    return row_of(regions, max(0.0, shares.get(_SHED, 0.0)))


def _lives(
    last: Spill, supply: Mapping[str, RegionSupply], now: float
) -> tuple[frozenset[str], dict[str, float]]:
    """(regions that are dead, those that have returned and still grow)."""
    living = {region for region, one in supply.items() if one.effective > 0.0}
    known = {region for region, one in last.supply.items() if one.effective > 0.0} | last.dead
    dead = frozenset(sorted(known - living)[:REGIONS_MAX])
    growing = {
        region: since
        for region, since in last.returned.items()
        if region in living and now - since < RETURN_S
    }
    return dead, {**growing, **dict.fromkeys(sorted(last.dead & living), now)}


def _growth(since: float | None, now: float) -> float:
    if since is None:
        return 1.0
    return min(1.0, RETURN_SHARE + (1.0 - RETURN_SHARE) * max(0.0, now - since) / RETURN_S)


def _good(
    said: Mapping[_Key, _Value],
    last: Mapping[_Key, _Value],
    good: Callable[[_Value], bool],
    what: str,
    ignored: list[str],
) -> dict[_Key, _Value]:
    """What was said, with the last good figure in place of each that cannot be."""
    taken: dict[_Key, _Value] = {}
    for key, value in said.items():
        if good(value):
            taken[key] = value
            continue
        ignored.append(f"{what} of {key!r}: {value!r}")
        if key in last:
            taken[key] = last[key]
    return taken


def _steady(said: Pairs, last: Pairs) -> dict[tuple[str, str], float]:
    """Round trips, each as it was unless it differs by enough."""
    return {
        pair: before
        if (before := last.get(pair)) is not None
        and abs(ms - before) <= max(RTT_SAME_MS, RTT_SAME_SHARE * before)
        else ms
        for pair, ms in said.items()
    }
