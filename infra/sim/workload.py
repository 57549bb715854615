"""What is asked: a trace, or requests like those of one, and how fast they come.

A trace knows no users. A request that begins as an earlier one did, beyond what nearly all have in
common, is of the same session, and a session stays in the region that a seeded draw gave it.
Sans-IO.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import cos, pi
from random import Random

from firstlight.infra.bench.load.schedule import BLOCK_TOKENS, Arrival
from firstlight.infra.sim.core import CoreSpec
from firstlight.shared.drafting.prefilltimes import pairs
from firstlight.shared.errors import ConfigError

COMMON_SHARE, COMMON_MIN = 0.02, 50
"""A beginning that more than this share of all requests has, and more than so many or the half of
them, is no sign of a session."""
ANSWER_GUESS_TOKENS = 350
"""What is expected of an answer that nobody knows: the Mooncake conversation trace's median."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    at_s: float
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...]
    """An id for each begun 512 tokens: equal ids, equal tokens up to their end."""
    session: int
    origin: int
    """Region of its edge."""


def sessions(arrivals: Sequence[Arrival]) -> list[int]:
    """The session of each request, numbered as they begin."""
    often = Counter(block for arrival in arrivals for block in set(arrival.blocks))
    common = min(len(arrivals) / 2, max(COMMON_MIN, COMMON_SHARE * len(arrivals)))
    owner: dict[int, int] = {}
    found, count = [], 0
    for arrival in arrivals:
        known = 0
        while known < len(arrival.blocks) and arrival.blocks[known] in owner:
            known += 1
        last = arrival.blocks[known - 1] if known else None
        if last is None or often[last] > common:
            session, count = count, count + 1
        else:
            session = owner[last]
        for block in arrival.blocks[known:]:
            owner[block] = session
        found.append(session)
    return found


def placed(
    arrivals: Sequence[Arrival], regions: int, rng: Random, *, diurnal: float = 0.0
) -> tuple[Asked, ...]:
    """Each with its session's region. `diurnal`: how far the regions' shares swing, 0 to 1, over a
    day that is as long as the trace, each region's noon a part of a day after the one before."""
    if not 0.0 <= diurnal <= 1.0:
        raise ConfigError(f"diurnal is {diurnal}, not between 0 and 1")
    span_s = max(1e-9, arrivals[-1].at_s) if arrivals else 1.0
    home: dict[int, int] = {}
    made: list[Asked] = []
    for arrival, session in zip(arrivals, sessions(arrivals), strict=True):
        if session not in home:
            day = arrival.at_s / span_s
            weights = [
                1.0 + diurnal * cos(2 * pi * (day - region / regions)) for region in range(regions)
            ]
            until = list(accumulate(weights))
            home[session] = min(regions - 1, bisect_right(until, rng.random() * until[-1]))
        made.append(
            Asked(
                arrival.at_s,
                arrival.tokens_in,
                arrival.tokens_out,
                _blocks(arrival, -1 - len(made)),
                session,
                home[session],
            )
        )
    return tuple(made)


def _blocks(arrival: Arrival, own: int) -> tuple[int, ...]:
    """All its blocks; those that the trace does not name are nobody else's."""
    missing = -(-arrival.tokens_in // BLOCK_TOKENS) - len(arrival.blocks)
    return arrival.blocks + tuple((own << 20) - index for index in range(missing))


def work_s(prompt_tokens: int, answer_tokens: int, spec: CoreSpec) -> float:
    """What a core does for a request of which it has nothing cached.

    A prefill takes what the table says of it. A token of the answer takes its share of a step of as
    many sequences as the core has places or memory for, and the reading of its own context.
    """
    table = spec.table
    context = prompt_tokens + answer_tokens / 2
    rows = max(1, min(spec.sequences_max, int(spec.pool_tokens / _MEAN_CONTEXT_TOKENS)))
    prefill_ms = table.work_ms(0, prompt_tokens, pairs(prompt_tokens, 0), 0)
    prefill_ms -= table.ms(0)
    token_ms = table.ms(rows) / rows + table.context_ms * context
    return (prefill_ms + answer_tokens * token_ms) / 1000


_MEAN_CONTEXT_TOKENS = 12_000
"""Of the Mooncake conversation trace; says how many sequences fit into a pool."""


def offered_s(asked: Sequence[Asked], spec: CoreSpec) -> float:
    """Of all of them together."""
    return sum(work_s(one.prompt_tokens, one.answer_tokens, spec) for one in asked)


def at_load(
    asked: Sequence[Asked], load: float, cores: int, spec: CoreSpec
) -> tuple[tuple[Asked, ...], float]:
    """(the same, as much faster as makes the offered work so much of the capacity, that factor)."""
    if not (0 < load < 100 and cores > 0 and asked):
        raise ConfigError(f"load {load} on {cores} cores with {len(asked)} requests")
    span_s = max(one.at_s for one in asked)
    if span_s <= 0:
        raise ConfigError("all requests come at once: there is no load to speak of")
    speed = load * cores * span_s / offered_s(asked, spec)
    return tuple(replace(one, at_s=one.at_s / speed) for one in asked), speed


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a trace is like: sorted samples of each figure."""

    first_tokens: tuple[int, ...]
    """Prompts that begin a session."""
    grown_tokens: tuple[int, ...]
    """How much longer the next prompt of a session is than the one before."""
    answer_tokens: tuple[int, ...]
    turns: tuple[int, ...]
    gap_s: tuple[float, ...]
    """Between requests of a session."""
    sessions_per_s: float
    common_blocks: int
    """Blocks that nearly all begin with."""


def fit(arrivals: Sequence[Arrival]) -> Fitted:
    """Measure a trace."""
    of = sessions(arrivals)
    last: dict[int, Arrival] = {}
    first, grown, gaps = [], [], []
    for arrival, session in zip(arrivals, of, strict=True):
        before = last.get(session)
        if before is None:
            first.append(arrival.tokens_in)
        else:
            grown.append(max(1, arrival.tokens_in - before.tokens_in))
            gaps.append(arrival.at_s - before.at_s)
        last[session] = arrival
    often = Counter(block for arrival in arrivals for block in set(arrival.blocks))
    span_s = max(1e-9, arrivals[-1].at_s - arrivals[0].at_s)
    return Fitted(
        first_tokens=tuple(sorted(first)),
        grown_tokens=tuple(sorted(grown)) or (1,),
        answer_tokens=tuple(sorted(one.tokens_out for one in arrivals)),
        turns=tuple(sorted(Counter(of).values())),
        gap_s=tuple(sorted(gaps)) or (60.0,),
        sessions_per_s=len(first) / span_s,
        common_blocks=sum(count > len(arrivals) / 2 for count in often.values()),
    )


def generated(like: Fitted, requests: int, rng: Random) -> tuple[Arrival, ...]:
    """So many requests: sessions begin at random, and go on as those of the trace did."""
    made: list[Arrival] = []
    at_s, names = 0.0, like.common_blocks
    while len(made) < 2 * requests:  # sessions overlap: what is cut off began last
        at_s += rng.expovariate(like.sessions_per_s)
        when_s, tokens = at_s, rng.choice(like.first_tokens)
        blocks = list(range(like.common_blocks))
        for turn in range(rng.choice(like.turns)):
            if turn:
                when_s += rng.choice(like.gap_s)
                tokens += rng.choice(like.grown_tokens)
                del blocks[max(like.common_blocks, (made[-1].tokens_in // BLOCK_TOKENS)) :]
            missing = max(0, -(-tokens // BLOCK_TOKENS) - len(blocks))
            blocks += range(names, names + missing)
            names += missing
            kept = tuple(blocks[: -(-tokens // BLOCK_TOKENS)])
            made.append(Arrival(when_s, tokens, rng.choice(like.answer_tokens), kept))
    return tuple(sorted(made, key=lambda one: one.at_s)[:requests])
