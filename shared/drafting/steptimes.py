"""How long a step takes by its rows, as measured: what tells whether one more row pays.

Averages that age, one a bucket of rows. Between buckets it interpolates; beyond what was ever
measured it assumes the shape of `_assumed`, so that a first guess exists before the first step.
Where rows cost less than that so far, it expects less of more rows too: else none would be tried.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from firstlight.shared.drafting.prefilltimes import PrefillTimes

BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_WEIGHT = 0.1
"""Of the newest measurement."""
_OUTLIER = 3.0
"""A measurement counts as at most this many times the average: the machine was busy elsewhere."""

_STEEPNESS_MIN = 0.25
"""However flat it was so far: the knee may come."""

_Curve = tuple[list[int], list[float]]
"""Rows, ascending, and times that never fall."""


class StepTimes:
    """Step time in ms by rows, of steps that only sample; and what prefill adds to it."""

    def __init__(
        self, table: tuple[tuple[int, float], ...] = (), prefill: PrefillTimes | None = None
    ) -> None:
        self._ms: dict[int, float] = dict(table)
        self._curve: _Curve | None = None
        """Of `_ms`; None: to be drawn anew."""
        self._table: tuple[tuple[int, float], ...] | None = None
        self.prefill = prefill or PrefillTimes()
        """What prompt tokens add."""

    @property
    def table(self) -> tuple[tuple[int, float], ...]:
        """(rows, ms) measured so far of steps that only sample, rows ascending."""
        if self._table is None:
            self._table = tuple(sorted(self._ms.items()))
        return self._table

    def observe(self, rows: int, ms: float) -> None:
        """A step of `rows` sampled rows and nothing else took `ms`."""
        self.observe_each(rows, (ms,))

    def observe_each(self, rows: int, times_ms: Iterable[float]) -> None:
        """Steps of `rows` sampled rows took these times, one after the other."""
        _note(self._ms, rows, times_ms)
        self._curve = self._table = None

    def observe_prefill(self, tokens: int, looked_at: int, rows: int, ms: float) -> None:
        """A step took `ms` with `tokens` prefill tokens, which looked at `looked_at` tokens, beside
        `rows` sampled rows."""
        rest = max(ms - (self.ms(rows) if rows and self._ms else 0.0), 0.1 * ms)
        self.prefill.observe(tokens, looked_at, rest)

    def ms(self, rows: int) -> float:
        """Expected time of a step; never falls as rows grow. Rows must be at least 1."""
        if not self._ms:
            return _assumed(rows)
        if self._curve is None:
            known = sorted(self._ms)
            self._curve = known, list(accumulate((self._ms[size] for size in known), max))
        return _expected(self._curve, rows)


def _note(table: dict[int, float], rows: int, times_ms: Iterable[float]) -> None:
    bucket = min(BUCKETS, key=lambda size: abs(size - rows))
    of_bucket, of_rows, held = _assumed(bucket), _assumed(rows), table.get(bucket)
    for ms in times_ms:
        scaled = ms * of_bucket / of_rows
        if held is None:
            held = scaled
        else:
            held += _WEIGHT * (min(scaled, _OUTLIER * held) - held)
    if held is not None:
        table[bucket] = held


def _expected(curve: _Curve, rows: int) -> float:
    known, times = curve
    place = bisect_left(known, rows)
    if place == 0:
        return times[0] * _assumed(rows) / _assumed(known[0])
    if place == len(known):
        rise = _assumed(rows) / _assumed(known[-1]) - 1
        return times[-1] * (1 + rise * _steepness(known, times))
    low, high = known[place - 1], known[place]
    share = (rows - low) / (high - low)
    return times[place - 1] + share * (times[place] - times[place - 1])


def _steepness(known: list[int], times: list[float]) -> float:
    """How much of the assumed rise was measured so far; at least `_STEEPNESS_MIN`, at most all."""
    if len(known) == 1:
        return 1.0
    assumed = _assumed(known[-1]) / _assumed(known[0]) - 1
    return min(max((times[-1] / times[0] - 1) / assumed, _STEEPNESS_MIN), 1.0)


def _assumed(rows: int) -> float:
    return 1.0 + 0.12 * (rows - 1)
