"""When requests are sent and how large they are, before anything runs.

Sans-IO: values and a `random.Random` in, a tuple of arrivals out, so that one seed gives every
server the same load. What happens to a request never moves a later one: the load is open.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from random import Random

from firstlight.shared.errors import ConfigError

BLOCK_TOKENS = 512
"""Tokens that one hash id of a trace stands for; the last of a prompt may stand for fewer."""
ARRIVALS_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to come."""

    at_s: float
    """After the first moment of the schedule."""
    tokens_in: int
    tokens_out: int
    blocks: tuple[int, ...] = ()
    """Hash ids of its beginning. Tokens beyond them are its own."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a model can take. None sets no limit."""

    tokens_in_max: int | None = None
    tokens_out_max: int | None = None
    context_tokens: int | None = None
    """Both together."""


def steady(rate: float, duration_s: float, size: tuple[int, int]) -> tuple[Arrival, ...]:
    """One request every 1/`rate` seconds, the first at once; `size`: tokens in and out."""
    _check_count(rate * duration_s)
    times = takewhile(lambda at: at < duration_s, (n / rate for n in range(ARRIVALS_MAX)))
    return tuple(Arrival(at, *size) for at in times)


def poisson(
    rate: float, duration_s: float, size: tuple[int, int], random: Random
) -> tuple[Arrival, ...]:
    """Independent arrivals, `rate` a second on average: gaps are exponential."""
    _check_count(rate * duration_s)
    arrivals: list[Arrival] = []
    at = random.expovariate(rate)
    while at < duration_s:
        arrivals.append(Arrival(at, *size))
        at += random.expovariate(rate)
    return tuple(arrivals)


def replayed(
    rows: Iterable[Arrival], speed: float, limit: int | None, duration_s: float | None
) -> tuple[Arrival, ...]:
    """A trace, `speed` times as fast, from its first arrival on; the first `limit` within
    `duration_s` of our time. Rows that are out of order are put in order, those alike stay so.

    Raises:
        ConfigError: nothing is left, or more than can be kept.

    """
    taken = sorted(islice(rows, (limit or ARRIVALS_MAX) + (limit is None)), key=lambda r: r.at_s)
    _check_count(len(taken))
    if not taken:
        raise ConfigError("the trace holds no request")
    begin_s = taken[0].at_s
    moved = (replace(row, at_s=(row.at_s - begin_s) / speed) for row in taken)
    return tuple(row for row in moved if duration_s is None or row.at_s < duration_s)


def fitted(arrivals: Iterable[Arrival], cut: Cut) -> tuple[Arrival, ...]:
    """Arrivals that the model can take: prompts keep their beginning, and leave room to answer."""
    return tuple(_fit(arrival, cut) for arrival in arrivals)


def _fit(arrival: Arrival, cut: Cut) -> Arrival:
    out = min(arrival.tokens_out, cut.tokens_out_max or arrival.tokens_out)
    given = min(arrival.tokens_in, cut.tokens_in_max or arrival.tokens_in)
    if cut.context_tokens is not None:
        out = min(out, max(1, cut.context_tokens - 1))
        given = min(given, max(1, cut.context_tokens - out))
    blocks = arrival.blocks[: -(-given // BLOCK_TOKENS)]
    return replace(arrival, tokens_in=given, tokens_out=out, blocks=blocks)


def _check_count(count: float) -> None:
    if count > ARRIVALS_MAX:
        raise ConfigError(
            f"{count:.0f} requests are more than {ARRIVALS_MAX}: a lower rate, a shorter duration, "
            "or --limit"
        )
