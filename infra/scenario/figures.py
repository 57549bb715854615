"""What became of a row's requests, and its figures. Sans-IO.

Times are in seconds of one clock. A stream's gap is the longest time between two pieces of its
text. A request that failed has no figures but its failure; what it had until then still counts for
the longest gap. `different`: answers whose ids are not those of the same question asked before.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median

import numpy as np


@dataclass(slots=True)
class Outcome:
    """One request."""

    number: int
    due_s: float
    sent_s: float = 0.0
    connected_s: float | None = None
    first_s: float | None = None
    """First text or id."""
    last_s: float | None = None
    gap_s: float = 0.0
    ids: tuple[int, ...] = ()
    first_ids: int = 0
    """Ids that came with the first text."""
    error: str | None = None
    """Why it failed; None: answered."""
    edge: str = ""
    core: str = ""
    """Who served its last part."""
    moved: int = 0
    resumed: int = 0
    prefill_ms: float | None = None
    """As the core measured it."""
    cached_tokens: int = 0
    hints_accepted: int = 0
    hints_verified: int = 0
    different: bool = False

    def seen(self, ids: tuple[int, ...], now: float) -> None:
        """A piece of the answer is here; `ids` are all so far."""
        self.ids = ids
        if self.first_s is None:
            self.first_s, self.first_ids = now, len(ids)
        elif self.last_s is not None:
            self.gap_s = max(self.gap_s, now - self.last_s)
        self.last_s = now

    @property
    def ttft_ms(self) -> float | None:
        """From when it should have been sent, so that a client that is late is not flattered."""
        return None if self.first_s is None else (self.first_s - self.due_s) * 1e3

    @property
    def tokens_per_s(self) -> float | None:
        """Of one stream, after its first text, which may have brought several."""
        if self.first_s is None or self.last_s is None or self.last_s <= self.first_s:
            return None
        return (len(self.ids) - self.first_ids) / (self.last_s - self.first_s)


@dataclass(slots=True)
class Row:
    """All of one load, as far as it has come."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def answered(self) -> list[Outcome]:
        """Those that have an answer."""
        return [one for one in self.outcomes if one.error is None]

    def figure(self, name: str) -> float | None:
        """One of `FIGURES`; None if nothing was measured that it is of."""
        return _MEASURES[name](self)


class Answers:
    """What was answered to which question, the first time that it was asked."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, int], tuple[int, ...]] = {}

    def compare(self, label: str, row: Row) -> None:
        """Note which answers of a row are other ones than before; a shorter one is compared as far
        as it goes."""
        for outcome in row.answered:
            before = self._ids.setdefault((label, outcome.number), outcome.ids)
            common = min(len(before), len(outcome.ids))
            outcome.different = before[:common] != outcome.ids[:common]


_Measure = Callable[[Row], float | None]


def _count(which: Callable[[Outcome], bool]) -> _Measure:
    return lambda row: float(sum(which(one) for one in row.outcomes))


def _percentile(percent: float, of: Callable[[Outcome], float | None]) -> _Measure:
    def measure(row: Row) -> float | None:
        return _at(percent, (of(one) for one in row.answered))

    return measure


def _at(percent: float, values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.percentile(there, percent)) if there else None


def _success(row: Row) -> float | None:
    return len(row.answered) / len(row.outcomes) if row.outcomes else None


def _gap_max(row: Row) -> float | None:
    return max((one.gap_s * 1e3 for one in row.outcomes), default=None)


def _tokens_per_s(row: Row) -> float | None:
    rates = [one.tokens_per_s for one in row.answered]
    there = [rate for rate in rates if rate is not None]
    return median(there) if there else None


def _total_per_s(row: Row) -> float | None:
    """All answers' tokens over the time from the first request to the last answer's end."""
    ended = [one.last_s for one in row.answered if one.last_s is not None]
    if not ended:
        return None
    took_s = max(ended) - min(one.due_s for one in row.outcomes)
    return sum(len(one.ids) for one in row.answered) / took_s if took_s > 0 else None


def _accepted(row: Row) -> float | None:
    verified = sum(one.hints_verified for one in row.answered)
    return sum(one.hints_accepted for one in row.answered) / verified if verified else None


_MEASURES: dict[str, _Measure] = {
    "asked": _count(lambda one: True),
    "answered": _count(lambda one: one.error is None),
    "failed": _count(lambda one: one.error is not None),
    "success": _success,
    "different": _count(lambda one: one.different),
    "moved": _count(lambda one: one.moved > 0),
    "resumed": _count(lambda one: one.resumed > 0),
    "ttft_p50_ms": _percentile(50, lambda one: one.ttft_ms),
    "ttft_p95_ms": _percentile(95, lambda one: one.ttft_ms),
    "ttft_p99_ms": _percentile(99, lambda one: one.ttft_ms),
    "prefill_p50_ms": _percentile(50, lambda one: one.prefill_ms),
    "gap_p50_ms": _percentile(50, lambda one: one.gap_s * 1e3),
    "gap_p99_ms": _percentile(99, lambda one: one.gap_s * 1e3),
    "gap_max_ms": _gap_max,
    "tokens_per_s": _tokens_per_s,
    "total_tokens_per_s": _total_per_s,
    "cached_tokens": _percentile(50, lambda one: float(one.cached_tokens)),
    "hints_accepted": _accepted,
}
FIGURES = tuple(_MEASURES)
"""Names of all figures."""
