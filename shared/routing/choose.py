"""Which core: the one rule of the mesh, asked by edges for each request.

1. The region is drawn by the spill row of this edge's origin with the session's hash; without a row
   it is this edge's own, and it is too where no core of the drawn one is known, and while nobody
   waits at the best core here, which is cold: what a link heard last is newer than any row. If
   what was drawn is shed, only a core that is cold by our own knowledge may serve.
2. Leave out cores that do not serve the model or cannot hold the prompt. Ejected cores are left out
   too, unless fewer than half are healthy: then health is not believed (panic).
3. After a failure prefer cores of the numerics class that the answer began in.
4. Other regions enter, by round trip, when no core of the drawn one lives below its hard cap; and
   when what waits at its best core is longer than 50 ms and than the way to another region is
   longer, and the best core there is cold and sooner by a fifth: shares follow ten seconds of
   demand, a queue grows in one.
5. The best of the region, by `rank`: of up to 16 cores all are weighed, of more 3 at random and one
   with the longest prefix; of the cold ones the least time to a first token, ties within 5 % at
   random; none cold: the least rif/cap.
6. The rest follows, best first, for the case that the pick fails; cores that failed in this request
   come last. No core below its cap anywhere: the reason says `shed`.

Of a region with more than 16 cores only 8 at random, and some that have a prefix, are looked at; 32
if too few of these are usable; then all. So a choice costs the same however many cores there are.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import chain
from math import inf
from random import Random

from firstlight.shared.routing.cost import CoreState, cost_of, standing_of
from firstlight.shared.routing.rank import (
    CANDIDATES_MAX,
    COLD,
    HOT_LOAD,
    Wanted,
    Weighed,
    by_share,
    rank,
    some,
)
from firstlight.shared.routing.spill import draw
from firstlight.shared.types import Candidate, Route

DEAD_S = 5.0
"""A core whose last word is older is used only when no other is there."""
WAIT_MS = 50.0
SOONER = 0.2
"""Where a request would wait longer than this, and than the way to another region is longer, that
region is taken if the first token is sooner there by this share."""
LOOKED_AT, LOOKED_AT_NEXT = 8, 32
"""Of a region with many cores so many are looked at first, and then, and as many with a prefix."""
ROUTE_MIN = 5
"""A route names this many cores, if there are as many."""
NEXT_MIN = 2
"""Cores named beyond the candidates."""

SHED = "shed"
"""`Route.reason` begins with this word if every core is at its hard cap, or all that is cold."""
SESSION_BYTES = 8
"""Of the hash that is drawn for a request without a session."""


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores that are known. How one stands is asked only of those that are looked at."""

    by_region: Mapping[str, Collection[str]]
    """Their names, in an order, quick to look up. No region is empty."""
    state: Callable[[str], CoreState]
    """How one of them stands."""

    @classmethod
    def of(cls, states: Iterable[CoreState]) -> "Cores":
        """Where all of them have been stated."""
        by_core, by_region = dict[str, CoreState](), dict[str, dict[str, None]]()
        for state in states:
            by_core[state.core] = state
            by_region.setdefault(state.region, {})[state.core] = None
        return cls(by_region, by_core.__getitem__)

    def all(self) -> list[CoreState]:
        """Of all regions."""
        return list(map(self.state, chain.from_iterable(self.by_region.values())))


@dataclass(slots=True)
class _Sorted:
    """The cores that can serve a request, by what may be done with them."""

    usable: dict[str, list[Weighed]]
    """By region."""
    ejected: list[Weighed]
    """Usable but for that."""
    unusable: list[Weighed]

    def by_nearness(self, first: str | None = None, second: str | None = None) -> list[str]:
        """Regions with usable cores, by the least round trip to any core there; `first` is, and
        `second` is it among those that are equally near."""
        if len(self.usable) == 1:
            return list(self.usable)
        nearest_ms: dict[str, float] = {}
        for here in (*self.usable.values(), self.ejected, self.unusable):
            for _, state in here:
                if 0.0 <= state.rtt_ms < nearest_ms.get(state.region, inf):
                    nearest_ms[state.region] = state.rtt_ms
        return sorted(
            self.usable,
            key=lambda name: (name != first, nearest_ms.get(name, inf), name != second, name),
        )


@dataclass(slots=True)
class _Found:
    """Where a request may go."""

    region: str
    picked: list[Candidate]
    """Best first, never empty: of the region, and a core before them that is sooner elsewhere."""
    cores: _Sorted
    regions: list[str]
    """By nearness."""
    exact: bool
    """Whether they are of the numerics class that is asked for."""
    panic: bool


def choose(known: Cores, wanted: Wanted, rng: Random) -> Route:
    """Cores for a request, best first. Empty only if no core can serve it at all."""
    region, wanted = region_of(wanted, rng)
    if region is None:
        route = _shed(known, wanted, rng)
    else:
        there = region if region in known.by_region else wanted.home
        route = _kept(known, wanted, there, rng) or _in_region(known, wanted, there, rng)
    if wanted.spill is None:
        return route
    shares = wanted.spill.fractions
    return Route(route.candidates, route.reason, panic=route.panic, drawn=region, spill=shares)


def region_of(wanted: Wanted, rng: Random) -> tuple[str | None, Wanted]:
    """The region that `choose` will draw, and what to ask it with, so that it draws the same.

    For whoever would rather not ask cores of all regions what they have. None: it is shed.
    """
    row = wanted.spill
    if row is None:
        return wanted.home, wanted
    if not wanted.session:
        wanted = replace(wanted, session=rng.randbytes(SESSION_BYTES))
    region = draw(row, wanted.session)
    return region or (None if row.shed > 0.0 else wanted.home), wanted


def _kept(known: Cores, wanted: Wanted, drawn: str, rng: Random) -> Route | None:
    """Home's route, if another region was drawn and nothing waits at home's best core."""
    if drawn == wanted.home or wanted.numerics_class is not None:
        return None
    cores = _enough(known, wanted, wanted.home, rng)
    if not any(_idle(state) for _, state in cores.usable.get(wanted.home, ())):
        return None
    found = _find(known, wanted, wanted.home, cores, rng)
    assert isinstance(found, _Found), found
    first = found.picked[0]
    if first.reason != COLD or not _idle(known.state(first.core)):
        return None
    reason = f"home region: nothing waits here, though {drawn} was drawn"
    return Route(_named(found, wanted), reason, panic=found.panic)


def _idle(state: CoreState) -> bool:
    """Whether nothing waits there, or so little that nobody would notice."""
    return not state.load.queued and standing_of(state).queue_ms <= WAIT_MS


def _in_region(known: Cores, wanted: Wanted, drawn: str, rng: Random) -> Route:
    found = _find(known, wanted, drawn, _enough(known, wanted, drawn, rng), rng)
    if isinstance(found, Route):
        return found
    reason = _why_region(found.region, drawn, wanted)
    if wanted.numerics_class is not None:
        reason += ", same numerics class" if found.exact else ", other numerics class"
    elif there := _sooner(known, wanted, found.picked[0], rng):
        found.picked.insert(0, there)
        reason = f"region {there.region}: sooner than in {found.region} by its wait"
    if found.panic:
        reason += ", panic: most cores are ejected"
    return Route(_named(found, wanted), reason, panic=found.panic)


def _find(known: Cores, wanted: Wanted, drawn: str, cores: _Sorted, rng: Random) -> _Found | Route:
    """Of these cores those of the drawn region or, if none of it is usable, of the nearest that has
    some; a route where there is none in any."""
    if not (cores.usable or cores.ejected or cores.unusable):
        return Route((), _why_none(known.all(), wanted))
    panic = _settle_ejected(cores)
    if not cores.usable:
        return _last_resort(cores.unusable, wanted)
    regions = cores.by_nearness(first=drawn)
    region, weighed, exact = _first_region(cores.usable, regions, wanted.numerics_class)
    among, most = len(known.by_region[region]), wanted.named_max
    picked = rank(weighed, wanted, rng, among=among, most=most)
    return _Found(region, picked, cores, regions, exact, panic)


def _named(found: _Found, wanted: Wanted) -> tuple[Candidate, ...]:
    """Those that were picked and, unless it is enough to name some of them, a few more."""
    picked, cores, most = found.picked, found.cores, wanted.named_max
    if most is not None and most <= len(picked):
        return tuple(picked[:most])
    more = max(NEXT_MIN, ROUTE_MIN - len(picked))
    taken = {one.core for one in picked}
    rest = _rest(cores.usable, found.regions, wanted, taken, more)
    last = _least_loaded(cores.unusable, wanted, more - len(rest))
    return (*picked, *rest, *last)[:most]


def _sooner(known: Cores, wanted: Wanted, first: Candidate, rng: Random) -> Candidate | None:
    """The best core of other regions, if what waits at our first is longer than the way there and
    it is sooner by `SOONER`. One core of each region tells how far that is."""
    rtt_ms, queue_ms, own = first.cost.rtt_ms, first.cost.queue_ms, first.region
    if queue_ms <= WAIT_MS:
        return None
    most_ms, state_of, draw_one = rtt_ms + queue_ms, known.state, rng.random
    near: list[Collection[str]] = []
    for region, here in known.by_region.items():
        if region != own:
            one = list(here)[int(draw_one() * len(here))]
            if state_of(one).rtt_ms < most_ms:
                near.append(here)
    if not near:
        return None
    looked_at = _look(known, near, LOOKED_AT, wanted, rng)
    usable = _sort_out([state for state in looked_at if state.rtt_ms < most_ms], wanted).usable
    idle = [item for there in usable.values() for item in there if item[0] <= HOT_LOAD]
    best = rank(idle, wanted, rng, among=sum(map(len, near)), most=1)[0] if idle else None
    sooner = best and best.reason == COLD and best.ttft_ms < first.ttft_ms * (1.0 - SOONER)
    return best if sooner else None


def _shed(known: Cores, wanted: Wanted, rng: Random) -> Route:
    """The nearest region with a core that is cold, or nothing."""
    cores = _sort_out(known.all(), wanted)
    for region in cores.by_nearness(second=wanted.home):
        idle = [item for item in cores.usable[region] if item[0] <= HOT_LOAD]
        picked = rank(idle, wanted, rng, most=wanted.named_max) if idle else []
        if picked and picked[0].reason == COLD:
            return Route(tuple(picked), f"region {region}: shed by its share, but it has room")
    return Route((), f"{SHED}: the share of this origin that no region has room for")


def _enough(known: Cores, wanted: Wanted, drawn: str, rng: Random) -> _Sorted:
    """Cores of the drawn region: some, or more of them, if enough of these are usable, else all,
    and with them those of other regions."""
    here = known.by_region.get(drawn, ())
    if wanted.numerics_class is not None:
        return _sort_out(known.all(), wanted)
    for count in (LOOKED_AT, LOOKED_AT_NEXT):
        cores = _sort_out(_look(known, [here], count, wanted, rng), wanted)
        if len(cores.usable.get(drawn, ())) >= max(ROUTE_MIN, len(cores.ejected)):
            return cores
    few, thinned = list(map(known.state, here)), list[str]()
    for region, there in known.by_region.items():
        if region != drawn:
            few += _look(known, [there], LOOKED_AT_NEXT, wanted, rng)
            if len(there) > LOOKED_AT_NEXT:
                thinned.append(region)
    cores = _sort_out(few, wanted)
    if all(len(cores.usable.get(region, ())) >= ROUTE_MIN for region in thinned):
        return cores
    return _sort_out(known.all(), wanted)


def _look(
    known: Cores, regions: Sequence[Collection[str]], count: int, wanted: Wanted, rng: Random
) -> list[CoreState]:
    """At all cores of these regions, or of many at `count` at random and as many with a prefix."""
    cores = list(chain.from_iterable(regions))
    if len(cores) > max(count, CANDIDATES_MAX):
        have = [core for here in regions for core in wanted.prefixes if core in here]
        if len(have) > count:
            have = some(have, count, rng)
        cores = list(dict.fromkeys(some(cores, count, rng) + have))
    return list(map(known.state, cores))


def _sort_out(states: Iterable[CoreState], wanted: Wanted) -> _Sorted:
    """One pass, written flat, since every core that is looked at comes by. Comparisons are such
    that NaN makes a core unusable."""
    usable: dict[str, list[Weighed]] = {}
    cores, model, excluded = _Sorted(usable, [], []), wanted.model, wanted.excluded
    tokens = max(wanted.context_tokens, wanted.prompt_tokens + 1)
    for state in states:
        if (model and model not in state.models) or 0 < state.context_max < tokens:
            continue
        load, region = state.load, state.region
        share = (load.running + load.queued + state.unseen_opens) / (load.sequences_max or 1)
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
    if not cores.ejected:
        return False
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
        for _, state in sorted(free, key=by_share)[: count - len(rest)]:
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
    most = CANDIDATES_MAX if wanted.named_max is None else wanted.named_max
    route = tuple(_least_loaded(unusable, wanted, most))
    if all(share >= 1.0 for share, _ in unusable):
        return Route(route, f"{SHED}: all {len(unusable)} cores are at their hard cap")
    return Route(route, "no core is known to be well")


def _candidate(state: CoreState, wanted: Wanted, reason: str) -> Candidate:
    """One that was not weighed."""
    prefix_tokens = wanted.prefixes.get(state.core, 0)
    cost = cost_of(state, prompt_tokens=wanted.prompt_tokens, prefix_tokens=prefix_tokens)
    return Candidate(state.core, state.region, cost.ms, reason, cost, prefix_tokens)
