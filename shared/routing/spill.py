"""Which region serves what comes in where: shares of each origin's work, by water-filling.

The target is a pure function of demand and capacity. Demand is what arrives, refused work included,
so that no share feeds back into it and old reports cannot make it swing:

    over all pairs (origin o, region r), a home first, then by round trip (ties by name):
        x = min(rest_o, max(0, 0.85·C_r − load_r))
    once more with 1.0·C_r, when all are at 0.85; what is left is shed_o;   f = x/D, Σf + shed = 1
    C_r = capacity · min(1, 1.4·healthy share)

`spill_step.step` moves the shares in force towards it, second by second: how far in one has a
limit, and what is not worth moving stays. A session is drawn by weighted rendezvous, so that a
share that grows takes sessions from those that shrink, and no other session moves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from math import inf, isfinite, log

FILL = 0.85
"""Of a region's capacity, until all regions are filled so far."""
HEALTHY_FACTOR = 1.4
"""A region counts as whole until less than 1/1.4 = 71 % of it is healthy, as Envoy has it."""
AMOUNT_MAX = 1e12
"""Of demand and capacity, prefill-token equivalents a second; more is nonsense."""
RTT_MS_MAX = 60_000.0
REGIONS_MAX = 128
"""Pairs are sorted each second."""
SHARE_MIN = 1e-9
"""A share below it is none."""
SUM_TOLERANCE = 1e-6

Pairs = Mapping[tuple[str, str], float]
"""(origin, region) → round trip, ms."""


@dataclass(frozen=True, slots=True)
class RegionSupply:
    """What a region's cores can do."""

    capacity: float
    """Prefill-token equivalents a second, when all of them are well."""
    healthy: float
    """The share of them that is, 0 to 1."""

    @property
    def effective(self) -> float:
        """What can be counted on."""
        return self.capacity * min(1.0, HEALTHY_FACTOR * self.healthy)


@dataclass(frozen=True, slots=True)
class Row:
    """Where the work of one origin goes. All shares and `shed` are 1 together."""

    fractions: tuple[tuple[str, float], ...]
    """(region, share above 0), by name."""
    shed: float = 0.0

    def share(self, region: str) -> float:
        """The share of one region."""
        return next((share for name, share in self.fractions if name == region), 0.0)


Table = Mapping[str, Row]
"""By origin region."""


def water_fill(
    demand: Mapping[str, float], supply: Mapping[str, RegionSupply], rtt_ms: Pairs
) -> Table:
    """The target. Raises `ValueError`, naming it, for a figure that cannot be.

    Pairs without a round trip come last. An origin without demand gets the row of the first
    request that will come.
    """
    _check(demand, supply, rtt_ms)
    capacity = {region: one.effective for region, one in sorted(supply.items())}
    least = max(1.0, sum(capacity.values())) * SHARE_MIN
    wanted = {origin: max(amount, least) for origin, amount in demand.items()}
    pairs = sorted(
        (origin != region, rtt_ms.get((origin, region), inf), origin, region)
        for origin in demand
        for region in capacity
    )
    rest, load = dict(wanted), dict.fromkeys(capacity, 0.0)
    given: dict[str, dict[str, float]] = {origin: {} for origin in demand}
    for fill in (FILL, 1.0):
        for _, _, origin, region in pairs:
            amount = min(rest[origin], max(0.0, fill * capacity[region] - load[region]))
            if amount > 0.0:
                rest[origin] -= amount
                load[region] += amount
                given[origin][region] = given[origin].get(region, 0.0) + amount
    return {origin: row_of(given[origin], rest[origin]) for origin in sorted(demand)}


def row_of(amounts: Mapping[str, float], shed: float) -> Row:
    """A row with shares in these proportions; nothing at all is shed."""
    total = sum(amounts.values()) + shed
    if total <= 0.0:
        return Row((), 1.0)
    kept = {name: amount for name, amount in amounts.items() if amount > SHARE_MIN * total}
    shed = shed if shed > SHARE_MIN * total else 0.0
    total = sum(kept.values()) + shed
    return Row(tuple((name, kept[name] / total) for name in sorted(kept)), shed / total)


def sane(row: Row) -> bool:
    """Whether somebody else's row can be followed."""
    shares = [share for _, share in row.fractions]
    return (
        len(shares) <= REGIONS_MAX
        and len({name for name, _ in row.fractions}) == len(shares)
        and all(isfinite(share) and 0.0 < share <= 1.0 + SUM_TOLERANCE for share in shares)
        and isfinite(row.shed)
        and row.shed >= 0.0
        and abs(sum(shares) + row.shed - 1.0) <= SUM_TOLERANCE
    )


def exact(row: Row) -> Row:
    """A sane row of somebody else, whose sum is 1 as nearly as that of our own."""
    return row_of(dict(row.fractions), row.shed)


def draw(row: Row, session: bytes) -> str | None:
    """The region of a session, or None if its share is shed. Same session, same row: same answer.

    Weighted rendezvous: the least −ln(u)/share, with u in (0, 1) from the session and the name.
    """
    best, least = None, inf
    for region, share in (*row.fractions, (None, row.shed)):
        if share > 0.0:
            keyed = _keyed(region).copy()
            keyed.update(session)
            score = -log((int.from_bytes(keyed.digest(), "little") + 0.5) / 2.0**64) / share
            if score < least:
                best, least = region, score
    return best


def good_amount(value: float) -> bool:
    """Whether it can be a demand or a capacity."""
    return isfinite(value) and 0.0 <= value <= AMOUNT_MAX


def good_supply(one: RegionSupply) -> bool:
    """Whether a region can be so."""
    return good_amount(one.capacity) and isfinite(one.healthy) and 0.0 <= one.healthy <= 1.0


def good_rtt(ms: float) -> bool:
    """Whether it can be a round trip."""
    return isfinite(ms) and 0.0 <= ms <= RTT_MS_MAX


@lru_cache(maxsize=REGIONS_MAX)
def _keyed(region: str | None) -> blake2b:
    """The hash of a region before it is told a session: to copy it costs less than to make it."""
    key = b"shed" if region is None else blake2b(region.encode(), digest_size=16).digest()
    return blake2b(digest_size=8, key=key)


def _check(demand: Mapping[str, float], supply: Mapping[str, RegionSupply], rtt_ms: Pairs) -> None:
    wrong: list[str] = [f"demand of {o!r}: {d}" for o, d in demand.items() if not good_amount(d)]
    wrong += [f"supply of {r!r}: {one}" for r, one in supply.items() if not good_supply(one)]
    wrong += [f"round trip {pair}: {ms} ms" for pair, ms in rtt_ms.items() if not good_rtt(ms)]
    if max(len(demand), len(supply)) > REGIONS_MAX:
        wrong.append(f"{max(len(demand), len(supply))} regions, at most {REGIONS_MAX}")
    if wrong:
        raise ValueError("; ".join(wrong[:3]))
