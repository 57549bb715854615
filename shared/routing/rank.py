"""Which of some cores: the second half of `choose`, where the cores are few.

1. Candidates: all of them up to 16, else 3 at random and one with the longest prefix. So too where
   they are some of more than 16.
2. Hot: rif/cap above max(0.75, the candidates' 0.84 quantile), KV above 0.85, a word older than
   1.5 s, or a figure that cannot be.
3. Of the cold ones the least `cost_of`, ties within 5 % at random; then the hot ones by rif/cap, at
   random if there is only an old word of all of them.
4. A prefix is hot if a larger share of the requests begins with it than of the candidates has it:
   then there is no credit for it above 1.25 times the mean load, and others come to have it.

What a core costs is a sum here. Its parts, and words for people, are made of the few that a route
names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from random import Random
from typing import TypeVar

from firstlight.shared.estimate import quantile
from firstlight.shared.routing.cost import (
    CoreState,
    Parts,
    nonsense,
    parts_of,
    prior_ms_among,
)
from firstlight.shared.routing.spill import Row
from firstlight.shared.types import Candidate, Cost

HOT_LOAD = 0.75
HOT_QUANTILE = 0.84
HOT_KV = 0.85
OLD_S = 1.5
TIE = 0.05
CANDIDATES_MAX = 16
SAMPLED = 3


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
    """Prompt tokens by core that should be cached there; none where a core is not in it."""
    prefix_traffic: float = 0.0
    """The share of this edge's late requests that begin with the prefix which is cached there."""
    named_max: int | None = None
    """How many cores the route names; None: all that were weighed, and some more."""


Weighed = tuple[float, CoreState]
"""A core behind its load share."""
by_share = itemgetter(0)
_by_draw, _by_share_then_draw = itemgetter(1), itemgetter(0, 1)
_Item = TypeVar("_Item")


@dataclass(slots=True)
class Ranked:
    """A core at its place."""

    ttft_ms: float
    state: CoreState
    parts: Parts
    """Of `ttft_ms`."""
    prefix_tokens: int
    hot: str
    """Why it is; empty: it is cold."""

    def named(self) -> Candidate:
        """As a route names it."""
        state, why = self.state, f"hot: {self.hot}" if self.hot else "cold"
        cost = Cost(*self.parts)
        return Candidate(state.core, state.region, self.ttft_ms, why, cost, self.prefix_tokens)


_by_ttft = attrgetter("ttft_ms")


def rank(here: Sequence[Weighed], wanted: Wanted, rng: Random, *, among: int = 0) -> list[Ranked]:
    """The candidates among these cores, best first. `among`: of so many these are some."""
    few = max(among, len(here)) <= CANDIDATES_MAX
    sampled = list(here) if few else _sample(here, wanted, rng)
    ranked = _weigh(sampled, wanted, rng)
    cold = [one for one in ranked if not one.hot]
    hot = [one for one in ranked if one.hot]
    cold.sort(key=_by_ttft)
    while cold:
        most_ms = cold[0].ttft_ms * (1.0 + TIE)
        first = rng.randrange(sum(one.ttft_ms <= most_ms for one in cold))
        wrong = nonsense(cold[first].state)
        if not wrong:
            cold[0], cold[first] = cold[first], cold[0]
            break
        liar = cold.pop(first)
        liar.hot = f"it says what cannot be, {wrong}"
        hot.append(liar)
    return cold + hot


def some(items: Sequence[_Item], count: int, rng: Random) -> list[_Item]:
    """So many at random. Quicker than `Random.sample` where they are few among many."""
    assert count <= len(items), (count, len(items))
    among, draw_one = len(items), rng.random
    places: dict[int, None] = {}
    while len(places) < count:
        places[int(draw_one() * among)] = None
    return [items[place] for place in places]


def _sample(here: Sequence[Weighed], wanted: Wanted, rng: Random) -> list[Weighed]:
    sampled, prefixes = some(here, min(SAMPLED, len(here)), rng), wanted.prefixes
    have = [item for item in here if item[1].core in prefixes]
    if have:  # of those that have the longest prefix, the least loaded
        best = max(have, key=lambda item: (prefixes[item[1].core], -item[0]))
        if not any(item is best for item in sampled):
            sampled.append(best)
    return sampled


def _weigh(here: list[Weighed], wanted: Wanted, rng: Random) -> list[Ranked]:
    """Each with its cost, and hot or cold; the least loaded first, equals in random order."""
    shares = [share for share, _ in here]
    mean, limit = sum(shares) / len(shares), HOT_LOAD
    if max(shares) > HOT_LOAD:
        limit = max(HOT_LOAD, quantile(shares, HOT_QUANTILE))
    states = [state for _, state in here]
    prior_ms = prior_ms_among(states)
    draw_one, prefixes = rng.random, wanted.prefixes
    order = [(share, draw_one(), state) for share, state in here]
    fresh = any(state.age_s <= OLD_S for state in states)
    order.sort(key=_by_share_then_draw if fresh else _by_draw)
    bounded = wanted.prefix_traffic > 0.0 and _holding(states, prefixes) < wanted.prefix_traffic
    prompt_tokens, ranked = wanted.prompt_tokens, list[Ranked]()
    for share, _, state in order:
        tokens = prefixes.get(state.core, 0)
        parts = parts_of(state, prompt_tokens, tokens, mean, prior_ms, bounded)
        rtt_ms, queue_ms, prefill_ms, step_ms, penalty_ms, _ = parts
        ttft_ms = rtt_ms + queue_ms + prefill_ms + step_ms + penalty_ms
        ranked.append(Ranked(ttft_ms, state, parts, tokens, _hot(state, share, limit)))
    return ranked


def _holding(states: Sequence[CoreState], prefixes: Mapping[str, int]) -> float:
    """The share of these cores that have the prefix."""
    return sum(prefixes.get(state.core, 0) > 0 for state in states) / len(states)


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
