"""What timestamps of streams say: first tokens, time per token, gaps. Pure functions over values.

A stream is known by when it was sent, when each event with text arrived, and how many tokens the
server says that it had. Milliseconds come out; None where there is nothing to say.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from firstlight.infra.bench.machine import percentile
from firstlight.infra.bench.timing import Timing

Figures = dict[str, float | None]
"""Figures of one repeat, by name."""


def lengths_ms(gaps: Sequence[tuple[float, float]]) -> list[float]:
    """How long each gap was."""
    return [(end - begin) * 1e3 for begin, end in gaps]


def single(timing: Timing) -> Figures:
    """Of one stream alone; `tokens_per_s` is its decode speed."""
    tpot_ms = timing.tpot_ms
    return {
        "ttft_ms": timing.ttft_ms,
        "tpot_ms": tpot_ms,
        "tokens_per_s": None if tpot_ms is None else 1e3 / tpot_ms,
    }


def streams(timings: Sequence[Timing]) -> Figures:
    """Of streams that were sent together; `tokens_per_s` is of all, from first send to last text.

    No timings, no figures.
    """
    if not timings:
        return {}
    first_ms = [timing.ttft_ms for timing in timings]
    gaps_ms = lengths_ms([gap for timing in timings for gap in timing.gaps])
    return {
        "ttft_ms": median(first_ms),
        "ttft_p95_ms": percentile(first_ms, 95),
        "tpot_ms": middle([timing.tpot_ms for timing in timings]),
        "tokens_per_s": _together(timings),
        "gap_p99_ms": percentile(gaps_ms, 99) if gaps_ms else None,
    }


def interference(others: Sequence[Timing], long: Timing) -> Figures:
    """What a long prompt did to streams that decoded when it came, and what it waited itself.

    The window is from its send to its first text. A gap is in the window if any part of it is, and
    counts with its whole length; a gap is before if all streams decoded when it began, and it was
    over when the prompt was sent. `tpot_ms` is the others', `tokens_per_s` of all nine.
    """
    begin, end = long.sent_s, long.events_s[0]
    decoding_s = max((other.events_s[0] for other in others), default=begin)
    gaps = [gap for other in others for gap in other.gaps]
    before = lengths_ms([gap for gap in gaps if decoding_s <= gap[0] and gap[1] <= begin])
    within = lengths_ms([gap for gap in gaps if gap[0] < end and gap[1] > begin])
    return {
        "ttft_ms": long.ttft_ms,
        "tpot_ms": middle([other.tpot_ms for other in others]),
        "tokens_per_s": _together([*others, long]),
        "gap_p50_before_ms": median(before) if before else None,
        "gap_max_ms": max(within, default=None),
        "gap_p99_ms": percentile(within, 99) if within else None,
    }


def prefix(cold: Timing, hits: Sequence[Timing]) -> Figures:
    """Of one prompt asked again: medians of the hits, and what the first one took."""
    first: Figures = {"cold_ms": cold.ttft_ms}
    return first | repeats([single(hit) for hit in hits])


def middle(values: Sequence[float | None]) -> float | None:
    """Median of those that are there."""
    there = [value for value in values if value is not None]
    return median(there) if there else None


def repeats(runs: Sequence[Mapping[str, float | None]]) -> Figures:
    """The median of each figure over repeats."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: middle([run.get(name) for run in runs]) for name in names}


def _together(timings: Sequence[Timing]) -> float | None:
    """Tokens a second of all, by the wall."""
    took_s = max(one.events_s[-1] for one in timings) - min(one.sent_s for one in timings)
    return sum(one.tokens for one in timings) / took_s if took_s > 0 else None
