"""Which of some cores: the second half of `choose`, where the cores are few.

1. Candidates: all of them up to 16, else 3 at random and one with the longest prefix. So too where
   they are some of more than 16.
2. Hot: rif/cap above max(0.75, the candidates' 0.84 quantile), KV above 0.85, a word older than
   1.5 s, or a figure that cannot be.
3. Of the cold ones the least `cost_of`, ties within 5 % at random; then the hot ones by rif/cap, at
   random if there is only an old word of all of them.
4. A prefix is hot if a larger share of the requests begins with it than of the candidates has it:
   then there is no credit for it above 1.25 times the mean load, and others come to have it.

Hot cores are not weighed. Records, and words for people, are made of the few that a route names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter
from random import Random
from typing import TypeVar

from firstlight.shared.estimate import quantile
from firstlight.shared.routing.cost import (
    PREFILL_PRIOR_MS,
    RECOMPUTE,
    CoreState,
    Parts,
    known_prefill_ms,
    nonsense,
    parts_of,
    standing_of,
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
COLD = "cold"
"""Why a candidate stands where it stands, unless the reason begins with `hot`."""


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
_Item = TypeVar("_Item")
_Cold = tuple[float, float, float, CoreState, Parts]
"""Behind its cost, its load share and what was drawn for it (no two draw the same); its parts."""
_Hot = tuple[float, float, str, CoreState]
"""Behind its load share, what was drawn for it, and words for why it is hot."""
_by_draw, _by_share_then_draw = itemgetter(1), itemgetter(0, 1)
_LOADED = "load {share:.2f} above {limit:.2f}"
_BACK = "load {share:.2f}, and back for too short a time for more"
_KV = f"KV {{state.load.kv_used_share:.2f}} above {HOT_KV}"
_OLD = "last heard {state.age_s:.1f} s ago"
_EJECTED = "ejected"


def rank(
    here: Sequence[Weighed],
    wanted: Wanted,
    rng: Random,
    *,
    among: int = 0,
    most: int | None = None,
) -> list[Candidate]:
    """The candidates among these cores, best first. `among`: of so many these are some. `most`: so
    many are asked for; None: all."""
    few = max(among, len(here)) <= CANDIDATES_MAX
    candidates = here if few else _sample(here, wanted, rng)
    scale = _Scale(candidates, wanted)
    cold, hot = _weigh(candidates, scale, rng)
    liars: list[Candidate] = []
    while cold:
        ties, most_ms = 1, cold[0][0] * (1.0 + TIE)
        while ties < len(cold) and cold[ties][0] <= most_ms:
            ties += 1
        first = rng.randrange(ties)
        wrong = nonsense(cold[first][3])
        if not wrong:
            cold[0], cold[first] = cold[first], cold[0]
            break
        ms, _, _, state, parts = cold.pop(first)
        why = f"hot: it says what cannot be, {wrong}"
        liars.append(scale.named(state, why, ms, parts))
    named = [scale.named(state, COLD, ms, parts) for ms, _, _, state, parts in cold[:most]]
    if len(named) == most:
        return named
    return [*named, *(scale.named_hot(one) for one in hot[:most]), *liars][:most]


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
    best, longest, least = None, 0, inf  # of those that have the longest prefix, the least loaded
    for item in here:
        share, state = item
        if state.core in prefixes:
            tokens = prefixes[state.core]
            if best is None or tokens > longest or (tokens == longest and share < least):
                best, longest, least = item, tokens, share
    if best is not None and best not in sampled:
        sampled.append(best)
    return sampled


class _Scale:
    """What the candidates of one request are measured by."""

    def __init__(self, here: Sequence[Weighed], wanted: Wanted) -> None:
        shares = [share for share, _ in here]
        self.here, self.wanted = here, wanted
        self.mean, self.limit = sum(shares) / len(shares), HOT_LOAD
        """Of their load shares; one above `limit` makes hot."""
        if max(shares) > HOT_LOAD:
            self.limit = max(HOT_LOAD, quantile(shares, HOT_QUANTILE))
        traffic = wanted.prefix_traffic
        self._bounded = traffic > 0.0 and self._holding() < traffic
        self._prior_ms = 0.0

    def parts_of(self, state: CoreState, tokens: int) -> Parts:
        """Of the time to a first token from this core, which has so many of the prompt cached."""
        prior_ms, mean, bounded = PREFILL_PRIOR_MS, self.mean, self._bounded
        if not (state.standing or standing_of(state)).measured:
            if not self._prior_ms:
                self._prior_ms = known_prefill_ms([state for _, state in self.here])
            prior_ms = self._prior_ms
        return parts_of(state, self.wanted.prompt_tokens, tokens, mean, prior_ms, bounded)

    def named(self, state: CoreState, why: str, ms: float, parts: Parts) -> Candidate:
        """A core as a route names it."""
        core = state.core
        tokens = self.wanted.prefixes.get(core, 0)
        return Candidate(core, state.region, ms, why, Cost(*parts), tokens)

    def named_hot(self, one: _Hot) -> Candidate:
        """One that was not weighed, with words for why it was not."""
        share, _, why, state = one
        parts = self.parts_of(state, self.wanted.prefixes.get(state.core, 0))
        rtt_ms, queue_ms, prefill_ms, step_ms, penalty_ms, _ = parts
        ms = rtt_ms + queue_ms + prefill_ms + step_ms + penalty_ms
        told = why.format(share=share, limit=self.limit, state=state)
        return self.named(state, f"hot: {told}", ms, parts)

    def _holding(self) -> float:
        """The share of the candidates that have the prefix."""
        prefixes = self.wanted.prefixes
        return sum(prefixes.get(state.core, 0) > 0 for _, state in self.here) / len(self.here)


def _weigh(here: Sequence[Weighed], scale: _Scale, rng: Random) -> tuple[list[_Cold], list[_Hot]]:
    """Those that are cold, by their cost, and those that are hot, by their load; equals in random
    order. Written flat: the cost of one without a prefix is that of `parts_of`, in one line."""
    cold: list[_Cold] = []
    hot: list[_Hot] = []
    prefixes, tokens = scale.wanted.prefixes, scale.wanted.prompt_tokens
    middle, draw_one, limit = (tokens + 1) / 2, rng.random, scale.limit
    for share, state in here:
        drawn = draw_one()
        if share > limit:
            hot.append((share, drawn, _LOADED, state))
        elif state.grown < 1.0 and share > HOT_LOAD * state.grown:
            hot.append((share, drawn, _BACK, state))
        elif state.load.kv_used_share > HOT_KV:
            hot.append((share, drawn, _KV, state))
        elif not state.age_s <= OLD_S:
            hot.append((share, drawn, _OLD, state))
        elif state.ejected:
            hot.append((share, drawn, _EJECTED, state))
        else:
            _, rtt_ms, queue_ms, step_ms, penalty_ms, token_ms, pair_ms, prefill_share, measured = (
                state.standing or standing_of(state)
            )
            cached = prefixes.get(state.core, 0)
            if measured and state.near is None and cached <= 0:
                ms = (token_ms * tokens + pair_ms * tokens * middle) / prefill_share
                parts = rtt_ms, queue_ms, ms, step_ms, penalty_ms, RECOMPUTE
            else:
                parts = scale.parts_of(state, cached)
                rtt_ms, queue_ms, ms, step_ms, penalty_ms, _ = parts
            ttft_ms = rtt_ms + queue_ms + ms + step_ms + penalty_ms
            cold.append((ttft_ms, share, drawn, state, parts))
    cold.sort()
    if len(hot) > 1:
        fresh = cold or any(state.age_s <= OLD_S for _, _, _, state in hot)
        hot.sort(key=_by_share_then_draw if fresh else _by_draw)
    return cold, hot
