"""Which core: the one rule of the mesh, asked by edges for each request.

1. Leave out cores that do not serve the model or cannot hold the prompt. Ejected cores are left out
   too, unless fewer than half are healthy: then health is not believed (panic).
2. After a failure prefer cores of the numerics class that the answer began in.
3. Regions: this edge's own, then the others by round trip; the first one with a core that lives and
   is below its hard cap.
4. Candidates: all such cores of the region up to 16, else 3 at random and the one with the longest
   prefix.
5. Hot: rif/cap above max(0.75, the candidates' 0.84 quantile), KV above 0.85, or a word older than
   1.5 s. Of the cold ones the least `ttft_ms`, ties within 5 % at random; none cold: the least
   rif/cap.
6. The rest follows, best first, for the case that the pick fails; cores that failed in this request
   come last. No core below its cap anywhere: the reason says `shed`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from math import inf
from random import Random

from firstlight.shared.estimate import quantile
from firstlight.shared.routing.cost import CoreState, known_prefill_ms, ttft_ms
from firstlight.shared.types import Candidate, Route

HOT_LOAD = 0.75
HOT_QUANTILE = 0.84
HOT_KV = 0.85
OLD_S = 1.5
DEAD_S = 5.0
"""A core whose last word is older is used only when no other is there."""
TIE = 0.05
CANDIDATES_MAX = 16
SAMPLED = 3
ROUTE_MIN = 8
"""A route names this many cores, if there are as many."""
NEXT_MIN = 2
"""Cores named beyond the candidates."""

SHED = "shed"
"""`Route.reason` begins with this word if every core is at its hard cap."""


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


Weighed = tuple[float, CoreState]
"""A core behind its load share."""


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
    cores = _sort_out(states, wanted)
    if not cores.nearest_ms:
        return Route((), _why_none(states, wanted))
    healthy = sum(len(here) for here in cores.usable.values())
    panic = len(cores.ejected) > healthy
    for weighed in cores.ejected:
        if panic:
            cores.usable.setdefault(weighed[1].region, []).append(weighed)
        else:
            cores.unusable.append(weighed)
    if not cores.usable:
        return _last_resort(cores.unusable, wanted)
    regions = sorted(
        cores.usable, key=lambda name: (name != wanted.home, cores.nearest_ms[name], name)
    )
    region, here, exact = _first_region(cores.usable, regions, wanted.numerics_class)
    picked = _rank(_sample(here, rng), wanted, rng)
    more = max(NEXT_MIN, ROUTE_MIN - len(picked))
    taken = {candidate.core for candidate in picked}
    rest = _rest(cores.usable, regions, wanted, taken, more)
    last = _least_loaded(cores.unusable, wanted, more - len(rest))
    reason = "home region" if region == wanted.home else f"region {region}: none free at home"
    if wanted.numerics_class is not None:
        reason += ", same numerics class" if exact else ", other numerics class"
    return Route(
        (*picked, *rest, *last), reason + (", panic: most cores are ejected" if panic else "")
    )


def _sort_out(states: Sequence[CoreState], wanted: Wanted) -> _Sorted:
    """One pass over all cores; written flat, since it is most of the time of a choice."""
    cores = _Sorted()
    model, excluded = wanted.model, wanted.excluded
    tokens = max(wanted.context_tokens, wanted.prompt_tokens + 1)
    usable, nearest_ms = cores.usable, cores.nearest_ms
    for state in states:
        if (model and model not in state.models) or 0 < state.context_max < tokens:
            continue
        load, region = state.load, state.region
        share = (load.running + load.queued + state.unseen_opens) / load.sequences_max
        if nearest_ms.get(region, inf) > state.rtt_ms:
            nearest_ms[region] = state.rtt_ms
        if share >= 1.0 or load.draining or state.age_s > DEAD_S or state.core in excluded:
            cores.unusable.append((share, state))
        elif state.ejected:
            cores.ejected.append((share, state))
        elif region in usable:
            usable[region].append((share, state))
        else:
            usable[region] = [(share, state)]
    return cores


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


def _why_none(states: Sequence[CoreState], wanted: Wanted) -> str:
    if not states:
        return "no core is known"
    if any(wanted.model in state.models for state in states):
        tokens = max(wanted.context_tokens, wanted.prompt_tokens + 1)
        return f"no core holds {tokens} tokens of prompt and answer"
    return f"no core serves model {wanted.model!r}"


def _sample(here: list[Weighed], rng: Random) -> list[Weighed]:
    if len(here) <= CANDIDATES_MAX:
        return list(here)
    sampled = rng.sample(here, SAMPLED)
    longest = max(here, key=lambda item: item[1].prefix_tokens)
    return sampled if longest in sampled else [*sampled, longest]


def _rank(here: list[Weighed], wanted: Wanted, rng: Random) -> list[Candidate]:
    shares = [share for share, _ in here]
    mean, limit = sum(shares) / len(shares), max(HOT_LOAD, quantile(shares, HOT_QUANTILE))
    prior_ms = known_prefill_ms([state for _, state in here])
    cold: list[tuple[float, CoreState, str]] = []
    hot: list[tuple[float, CoreState, str]] = []
    # Shuffled first, so that equals stand in random order after the (stable) sort.
    rng.shuffle(here)
    here.sort(key=lambda item: item[0])
    for share, state in here:
        cost = ttft_ms(
            state,
            prompt_tokens=wanted.prompt_tokens,
            mean_load=mean,
            prefill_prior_ms=prior_ms,
        )
        why = _hot(state, share, limit)
        if why:
            hot.append((cost, state, f"hot: {why}"))
        else:
            cold.append((cost, state, "cold"))
    cold.sort(key=lambda item: item[0])
    if cold:
        ties = sum(cost <= cold[0][0] * (1.0 + TIE) for cost, _, _ in cold)
        first = rng.randrange(ties)
        cold[0], cold[first] = cold[first], cold[0]
    return [Candidate(state.core, state.region, cost, why) for cost, state, why in (*cold, *hot)]


def _hot(state: CoreState, share: float, limit: float) -> str:
    if share > limit:
        return f"load {share:.2f} above {limit:.2f}"
    if state.load.kv_used_share > HOT_KV:
        return f"KV {state.load.kv_used_share:.2f} above {HOT_KV}"
    if state.age_s > OLD_S:
        return f"last heard {state.age_s:.1f} s ago"
    return "ejected" if state.ejected else ""


def _rest(
    usable: dict[str, list[Weighed]],
    regions: Sequence[str],
    wanted: Wanted,
    taken: set[str],
    count: int,
) -> list[Candidate]:
    rest: list[Candidate] = []
    for region in regions:
        if len(rest) >= count:
            break
        free = [item for item in usable[region] if item[1].core not in taken]
        for _, state in nsmallest(count - len(rest), free, key=lambda item: item[0]):
            rest.append(_candidate(state, wanted, "next if others fail"))
    return rest


def _least_loaded(unusable: list[Weighed], wanted: Wanted, count: int) -> list[Candidate]:
    def key(item: Weighed) -> tuple[bool, bool, bool, float]:
        share, state = item
        failed = state.core in wanted.excluded
        return failed, state.age_s > DEAD_S, state.load.draining or state.ejected, share

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


def _candidate(state: CoreState, wanted: Wanted, reason: str) -> Candidate:
    cost = ttft_ms(state, prompt_tokens=wanted.prompt_tokens)
    return Candidate(state.core, state.region, cost, reason)
