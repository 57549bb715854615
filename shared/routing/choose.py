"""Which core: the one rule of the mesh, asked by edges for each request.

1. The region is drawn by the spill row of this edge's origin with the session's hash; without a row
   it is this edge's own. If what was drawn is shed, only a core that is cold by our own knowledge
   may serve: what a link heard last is newer than any row.
2. Leave out cores that do not serve the model or cannot hold the prompt. Ejected cores are left out
   too, unless fewer than half are healthy: then health is not believed (panic).
3. After a failure prefer cores of the numerics class that the answer began in.
4. Other regions enter, by round trip, when no core of the drawn one lives below its hard cap; and
   when what waits at its best core is longer than 50 ms and than the way to another region is
   longer, and the best core there is cold and sooner by a fifth: shares follow ten seconds of
   demand, a queue grows in one.
5. Candidates: all such cores of the region up to 16, else 3 at random and one with the longest
   prefix.
6. Hot: rif/cap above max(0.75, the candidates' 0.84 quantile), KV above 0.85, a word older than
   1.5 s, or a figure that cannot be. Of the cold ones the least `cost_of`, ties within 5 % at
   random; none cold: the least rif/cap, and at random if that is an old word of all of them.
7. A prefix is hot if a larger share of the requests begins with it than of the candidates has it:
   then there is no credit for it above 1.25 times the mean load, and others come to have it.
8. The rest follows, best first, for the case that the pick fails; cores that failed in this request
   come last. No core below its cap anywhere: the reason says `shed`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from math import inf
from operator import itemgetter
from random import Random
from typing import TypeVar

from firstlight.shared.estimate import quantile
from firstlight.shared.routing.cost import (
    PREFILL_PRIOR_MS,
    CoreState,
    cost_of,
    known_prefill_ms,
    nonsense,
)
from firstlight.shared.routing.spill import Row, draw
from firstlight.shared.types import Candidate, Route

HOT_LOAD = 0.75
HOT_QUANTILE = 0.84
HOT_KV = 0.85
OLD_S = 1.5
DEAD_S = 5.0
"""A core whose last word is older is used only when no other is there."""
TIE = 0.05
WAIT_MS = 50.0
SOONER = 0.2
"""Where a request would wait longer than this, and than the way to another region is longer, that
region is taken if the first token is sooner there by this share."""
CANDIDATES_MAX = 16
SAMPLED = 3
MANY = 64
LOOKED_AT = 24
"""Of a region with many cores so many are looked at, and as many that have a prefix: what is usable
among them is enough to go on with, or else all are."""
ROUTE_MIN = 5
"""A route names this many cores, if there are as many."""
NEXT_MIN = 2
"""Cores named beyond the candidates."""

SHED = "shed"
"""`Route.reason` begins with this word if every core is at its hard cap, or all that is cold."""
SESSION_BYTES = 8
"""Of the hash that is drawn for a request without a session."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the request asks of a core."""

    home: str
    """The region of the edge."""
    prompt_tokens: int
    context_tokens: int = 0
    """Prompt and answer together; 0: the prompt and one more."""
    model: str = ""
    """Empty: any."""
    numerics_class: str | None = None
    """Of the core where the answer began, on failover."""
    excluded: frozenset[str] = frozenset()
    """Cores that failed in this request."""
    spill: Row | None = None
    """Where work of this origin goes; None: home first."""
    session: bytes = b""
    """What stays in one region while its share allows; empty: each request by itself."""
    prefixes: Mapping[str, int] = field(default_factory=dict)
    """Prompt tokens by core that should be cached there, if they are more than the state says."""
    prefix_traffic: float = 0.0
    """The share of this edge's late requests that begin with the prefix which is cached there."""

    def prefix_tokens(self, state: CoreState) -> int:
        """Prompt tokens that the core should have cached."""
        return max(self.prefixes.get(state.core, 0), state.prefix_tokens)


Weighed = tuple[float, CoreState]
"""A core behind its load share."""
_SHARE = itemgetter(0)
_Item = TypeVar("_Item", CoreState, Weighed)


@dataclass(slots=True)
class _Sorted:
    """The cores that can serve a request, by what may be done with them."""

    usable: dict[str, list[Weighed]] = field(default_factory=dict)
    """By region."""
    ejected: list[Weighed] = field(default_factory=list)
    """Usable but for that."""
    unusable: list[Weighed] = field(default_factory=list)
    nearest_ms: dict[str, float] = field(default_factory=dict)
    """Least round trip to any core of a region."""


def choose(states: Sequence[CoreState], wanted: Wanted, rng: Random) -> Route:
    """Cores for a request, best first. Empty only if no core can serve it at all."""
    region, wanted = region_of(wanted, rng)
    if region is None:
        route = _shed(states, wanted, rng)
    else:
        route = _in_region(states, wanted, region, rng)
    if wanted.spill is None:
        return route
    shares = wanted.spill.fractions
    return Route(route.candidates, route.reason, panic=route.panic, drawn=region, spill=shares)


def region_of(wanted: Wanted, rng: Random) -> tuple[str | None, Wanted]:
    """The region that `choose` will draw, and what to ask it with, so that it draws the same.

    For whoever would rather not gather the cores of all regions. None: what was drawn is shed.
    """
    row = wanted.spill
    if row is None:
        return wanted.home, wanted
    if not wanted.session:
        wanted = replace(wanted, session=rng.randbytes(SESSION_BYTES))
    region = draw(row, wanted.session)
    return region or (None if row.shed > 0.0 else wanted.home), wanted


def _in_region(states: Sequence[CoreState], wanted: Wanted, drawn: str, rng: Random) -> Route:
    cores = _sort_out(_few([s for s in states if s.region == drawn], wanted, rng), wanted)
    here = len(cores.usable.get(drawn, ()))
    if here < ROUTE_MIN or here < len(cores.ejected) or wanted.numerics_class is not None:
        cores = _of_all(states, wanted, drawn, rng)
    if not (cores.usable or cores.ejected or cores.unusable):
        return Route((), _why_none(states, wanted))
    panic = _settle_ejected(cores)
    if not cores.usable:
        return _last_resort(cores.unusable, wanted)
    regions = sorted(
        cores.usable, key=lambda name: (name != drawn, cores.nearest_ms.get(name, inf), name)
    )
    region, weighed, exact = _first_region(cores.usable, regions, wanted.numerics_class)
    picked = _rank(_sample(weighed, wanted, rng), wanted, rng)
    reason = _why_region(region, drawn, wanted)
    if wanted.numerics_class is None and (there := _sooner(states, wanted, picked[0], rng)):
        picked = [*there[:1], *picked]
        reason = f"region {there[0].region}: sooner than in {region} by its wait"
    more = max(NEXT_MIN, ROUTE_MIN - len(picked))
    taken = {candidate.core for candidate in picked}
    rest = _rest(cores.usable, regions, wanted, taken, more)
    last = _least_loaded(cores.unusable, wanted, more - len(rest))
    if wanted.numerics_class is not None:
        reason += ", same numerics class" if exact else ", other numerics class"
    if panic:
        reason += ", panic: most cores are ejected"
    return Route((*picked, *rest, *last), reason, panic=panic)


def _sooner(
    states: Sequence[CoreState], wanted: Wanted, first: Candidate, rng: Random
) -> list[Candidate]:
    """Cores of other regions, best first, if what waits at our first is longer than the way there
    and the best of them is sooner by `SOONER`; else none."""
    if first.cost.queue_ms <= WAIT_MS:
        return []
    regions: dict[str, list[CoreState]] = {}
    for state in states:
        longer_ms = state.rtt_ms - first.cost.rtt_ms
        if state.region != first.region and longer_ms < first.cost.queue_ms:
            regions.setdefault(state.region, []).append(state)
    cores = _sort_out([s for there in regions.values() for s in _few(there, wanted, rng)], wanted)
    there = [item for here in cores.usable.values() for item in here if item[0] <= HOT_LOAD]
    picked = _rank(_sample(there, wanted, rng), wanted, rng) if there else []
    limit_ms = first.ttft_ms * (1.0 - SOONER)
    found = picked and picked[0].reason == "cold" and picked[0].ttft_ms < limit_ms
    return picked if found else []


def _shed(states: Sequence[CoreState], wanted: Wanted, rng: Random) -> Route:
    """The nearest region with a core that is cold, or nothing."""
    cores = _sort_out(states, wanted)
    for region in sorted(
        cores.usable, key=lambda name: (cores.nearest_ms.get(name, inf), name != wanted.home, name)
    ):
        idle = [item for item in cores.usable[region] if item[0] <= HOT_LOAD]
        picked = _rank(_sample(idle, wanted, rng), wanted, rng) if idle else []
        if picked and picked[0].reason == "cold":
            return Route(tuple(picked), f"region {region}: shed by its share, but it has room")
    return Route((), f"{SHED}: the share of this origin that no region has room for")


def _of_all(states: Sequence[CoreState], wanted: Wanted, drawn: str, rng: Random) -> _Sorted:
    """Cores of all regions: all of the drawn one, and of others that have many a few, if these are
    enough to go by."""
    if wanted.numerics_class is not None or len(states) <= MANY:
        return _sort_out(states, wanted)
    regions: dict[str, list[CoreState]] = {}
    for state in states:
        regions.setdefault(state.region, []).append(state)
    looked_at = regions.pop(drawn, [])
    thinned = [region for region, there in regions.items() if len(there) > MANY]
    for there in regions.values():
        looked_at += _few(there, wanted, rng)
    if not thinned:
        return _sort_out(states, wanted)
    cores = _sort_out(looked_at, wanted)
    if all(len(cores.usable.get(region, ())) >= ROUTE_MIN for region in thinned):
        return cores
    return _sort_out(states, wanted)


def _few(here: list[CoreState], wanted: Wanted, rng: Random) -> list[CoreState]:
    """Those of many that are worth a look: some at random, and some with a prefix."""
    if len(here) <= MANY:
        return here
    few = _some(here, LOOKED_AT, rng)
    seen, prefixes = {state.core for state in few}, wanted.prefixes
    have = [state for state in here if state.core in prefixes or state.prefix_tokens]
    if len(have) > LOOKED_AT:
        have = _some(have, LOOKED_AT, rng)
    return [*few, *(state for state in have if state.core not in seen)]


def _some(items: Sequence[_Item], count: int, rng: Random) -> list[_Item]:
    """So many at random. Quicker than `Random.sample` where they are few among many."""
    assert count <= len(items), (count, len(items))
    among, draw_one, places = len(items), rng.random, dict[int, None]()
    while len(places) < count:
        places[int(draw_one() * among)] = None
    return [items[place] for place in places]


def _sort_out(states: Sequence[CoreState], wanted: Wanted) -> _Sorted:
    """One pass, written flat, since it is most of the time of a choice. Comparisons are such that
    NaN makes a core unusable."""
    cores = _Sorted()
    model, excluded = wanted.model, wanted.excluded
    tokens = max(wanted.context_tokens, wanted.prompt_tokens + 1)
    usable, nearest_ms = cores.usable, cores.nearest_ms
    for state in states:
        if (model and model not in state.models) or 0 < state.context_max < tokens:
            continue
        load, region = state.load, state.region
        share = (load.running + load.queued + state.unseen_opens) / (load.sequences_max or 1)
        if 0.0 <= state.rtt_ms < nearest_ms.get(region, inf):
            nearest_ms[region] = state.rtt_ms
        if not (share < 1.0 and state.age_s <= DEAD_S) or load.draining or state.core in excluded:
            cores.unusable.append((share, state))
        elif state.ejected:
            cores.ejected.append((share, state))
        elif region in usable:
            usable[region].append((share, state))
        else:
            usable[region] = [(share, state)]
    return cores


def _settle_ejected(cores: _Sorted) -> bool:
    """Put ejected cores where they belong; whether most are, so that they are used (panic)."""
    panic = len(cores.ejected) > sum(len(here) for here in cores.usable.values())
    for weighed in cores.ejected:
        if panic:
            cores.usable.setdefault(weighed[1].region, []).append(weighed)
        else:
            cores.unusable.append(weighed)
    return panic


def _first_region(
    usable: dict[str, list[Weighed]], regions: Sequence[str], numerics_class: str | None
) -> tuple[str, list[Weighed], bool]:
    """(region, its cores to choose from, whether they are of the wanted class)."""
    if numerics_class is not None:
        for region in regions:
            same = [item for item in usable[region] if item[1].numerics_class == numerics_class]
            if same:
                return region, same, True
    return regions[0], usable[regions[0]], False


def _why_region(region: str, drawn: str, wanted: Wanted) -> str:
    where = "at home" if drawn == wanted.home else f"in {drawn}"
    if region != drawn:
        return f"region {region}: none free {where}"
    return "home region" if region == wanted.home else f"region {region}: drawn by its share"


def _why_none(states: Sequence[CoreState], wanted: Wanted) -> str:
    if not states:
        return "no core is known"
    if any(wanted.model in state.models for state in states):
        tokens = max(wanted.context_tokens, wanted.prompt_tokens + 1)
        return f"no core holds {tokens} tokens of prompt and answer"
    return f"no core serves model {wanted.model!r}"


def _sample(here: list[Weighed], wanted: Wanted, rng: Random) -> list[Weighed]:
    if len(here) <= CANDIDATES_MAX:
        return list(here)
    sampled, prefixes = _some(here, SAMPLED, rng), wanted.prefixes
    have = [item for item in here if item[1].core in prefixes or item[1].prefix_tokens]
    if have:  # of those that have the longest prefix, the least loaded
        best = min(have, key=lambda item: (-wanted.prefix_tokens(item[1]), item[0]))
        if best not in sampled:
            sampled.append(best)
    return sampled


def _rank(here: list[Weighed], wanted: Wanted, rng: Random) -> list[Candidate]:
    shares = [share for share, _ in here]
    mean, limit = sum(shares) / len(shares), max(HOT_LOAD, quantile(shares, HOT_QUANTILE))
    prior_ms = known_prefill_ms([state for _, state in here])
    holders = sum(wanted.prefix_tokens(state) > 0 for _, state in here)
    bounded = wanted.prefix_traffic > holders / len(here)
    cold: list[tuple[Candidate, CoreState]] = []
    hot: list[Candidate] = []
    # Shuffled first, so that equals stand in random order after the (stable) sort.
    rng.shuffle(here)
    if any(state.age_s <= OLD_S for _, state in here):
        here.sort(key=_SHARE)
    for share, state in here:
        why = _hot(state, share, limit)
        reason = f"hot: {why}" if why else "cold"
        candidate = _candidate(state, wanted, reason, mean=mean, prior_ms=prior_ms, bounded=bounded)
        if why:
            hot.append(candidate)
        else:
            cold.append((candidate, state))
    cold.sort(key=lambda item: item[0].ttft_ms)
    while cold:
        most_ms = cold[0][0].ttft_ms * (1.0 + TIE)
        first = rng.randrange(sum(candidate.ttft_ms <= most_ms for candidate, _ in cold))
        wrong = nonsense(cold[first][1])
        if not wrong:
            cold[0], cold[first] = cold[first], cold[0]
            break
        liar, _ = cold.pop(first)
        hot.append(replace(liar, reason=f"hot: it says what cannot be, {wrong}"))
    return [*(candidate for candidate, _ in cold), *hot]


def _hot(state: CoreState, share: float, limit: float) -> str:
    if share > limit:
        return f"load {share:.2f} above {limit:.2f}"
    if state.grown < 1.0 and share > HOT_LOAD * state.grown:
        return f"load {share:.2f}, and back for too short a time for more"
    if state.load.kv_used_share > HOT_KV:
        return f"KV {state.load.kv_used_share:.2f} above {HOT_KV}"
    if not state.age_s <= OLD_S:
        return f"last heard {state.age_s:.1f} s ago"
    return "ejected" if state.ejected else ""


def _rest(
    usable: dict[str, list[Weighed]],
    regions: Iterable[str],
    wanted: Wanted,
    taken: set[str],
    count: int,
) -> list[Candidate]:
    rest: list[Candidate] = []
    for region in regions:
        if len(rest) >= count:
            break
        free = [item for item in usable[region] if item[1].core not in taken]
        for _, state in sorted(free, key=_SHARE)[: count - len(rest)]:
            rest.append(_candidate(state, wanted, "next if others fail"))
    return rest


def _least_loaded(unusable: list[Weighed], wanted: Wanted, count: int) -> list[Candidate]:
    def key(item: Weighed) -> tuple[bool, bool, bool, float]:
        share, state = item
        failed = state.core in wanted.excluded
        return failed, not state.age_s <= DEAD_S, state.load.draining or state.ejected, share

    if count <= 0:
        return []
    return [
        _candidate(state, wanted, f"last resort: {_unusable(state, wanted)}")
        for _, state in nsmallest(count, unusable, key=key)
    ]


def _unusable(state: CoreState, wanted: Wanted) -> str:
    if state.core in wanted.excluded:
        return "failed in this request"
    if state.full:
        return f"full, {state.rif} of {state.load.sequences_max}"
    if state.load.draining:
        return "draining"
    if state.ejected:
        return "ejected"
    return f"last heard {state.age_s:.1f} s ago"


def _last_resort(unusable: list[Weighed], wanted: Wanted) -> Route:
    route = tuple(_least_loaded(unusable, wanted, CANDIDATES_MAX))
    if all(share >= 1.0 for share, _ in unusable):
        return Route(route, f"{SHED}: all {len(unusable)} cores are at their hard cap")
    return Route(route, "no core is known to be well")


def _candidate(
    state: CoreState,
    wanted: Wanted,
    reason: str,
    *,
    mean: float = 0.0,
    prior_ms: float = PREFILL_PRIOR_MS,
    bounded: bool = False,
) -> Candidate:
    prefix_tokens = wanted.prefix_tokens(state)
    cost = cost_of(
        state,
        prompt_tokens=wanted.prompt_tokens,
        prefix_tokens=prefix_tokens,
        mean_load=mean,
        prefill_prior_ms=prior_ms,
        bounded=bounded,
    )
    return Candidate(state.core, state.region, cost.ms, reason, cost, prefix_tokens)
