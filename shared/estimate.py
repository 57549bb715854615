"""What was measured, kept small: sums that forget by time, and quantiles of the recent past.

Time is passed in, and reading changes nothing, so that a decision can read an estimate as often
as it likes. Every estimate is bounded, however often it is fed.
"""

import math
from collections import deque
from collections.abc import Sequence

RTT_SAMPLES_MAX = 64
RTT_WINDOW_S = 60.0
RTT_QUANTILE = 0.75
THROUGHPUT_BYTES_MIN = 1 << 20
"""What must have been moved lately for a throughput to count as measured."""


def quantile(values: Sequence[float], share: float) -> float:
    """The `share` quantile of `values` (not empty), linear between neighbours."""
    assert values
    assert 0.0 <= share <= 1.0, share
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


class DecayingSum:
    """A sum that halves every `half_life_s`: penalties that fade."""

    def __init__(self, half_life_s: float) -> None:
        assert half_life_s > 0, half_life_s
        self._half_life_s = half_life_s
        self._value = 0.0
        self._at = 0.0

    def add(self, amount: float, now: float) -> None:
        """Add to what is left of the sum."""
        self._value = self.value(now) + amount
        self._at = max(now, self._at)

    def value(self, now: float) -> float:
        """What is left of it."""
        return float(self._value * 0.5 ** (max(0.0, now - self._at) / self._half_life_s))


class Throughput:
    """Bytes a second of a path: of what was moved over it lately, the old forgotten by time.

    Sums and not a mean of rates, so that a short transfer weighs little. Before the first
    measurement, and when it is long ago, it is the prior.
    """

    def __init__(self, prior_bytes_per_s: float, half_life_s: float = 60.0) -> None:
        self._prior = prior_bytes_per_s
        self._bytes, self._s = DecayingSum(half_life_s), DecayingSum(half_life_s)

    def observe(self, count_bytes: int, took_s: float, now: float) -> None:
        """So many bytes took so long."""
        if count_bytes > 0 and took_s > 0:
            self._bytes.add(count_bytes, now)
            self._s.add(took_s, now)

    def measured(self, now: float) -> bool:
        """Whether enough was moved lately to believe it."""
        return self._bytes.value(now) >= THROUGHPUT_BYTES_MIN

    def ms(self, count_bytes: int, now: float) -> float:
        """What moving so many bytes should take."""
        if not self.measured(now):
            return count_bytes / self._prior * 1000
        return count_bytes * self._s.value(now) / self._bytes.value(now) * 1000


class RttEstimate:
    """Round trip to one peer: a quantile of what was measured in the last minute.

    A quantile and not the last sample, so that one lost packet does not move traffic; three
    quarters and not the mean, so that a jittery path costs what it costs. Before the first
    measurement it is the prior; after a silence it is what was measured last.
    """

    def __init__(self, prior_ms: float) -> None:
        self._prior_ms = prior_ms
        self._samples: deque[tuple[float, float]] = deque(maxlen=RTT_SAMPLES_MAX)
        self._value_ms: float | None = None

    def observe(self, ms: float, now: float) -> None:
        """Take a measured round trip; negative and infinite ones are dropped."""
        if not (math.isfinite(ms) and ms >= 0.0):
            return
        self._samples.append((now, ms))
        while self._samples[0][0] < now - RTT_WINDOW_S:
            self._samples.popleft()
        self._value_ms = quantile([sample for _, sample in self._samples], RTT_QUANTILE)

    @property
    def ms(self) -> float:
        """The estimate."""
        return self._prior_ms if self._value_ms is None else self._value_ms

    @property
    def measured(self) -> bool:
        """Whether the estimate rests on a measurement."""
        return self._value_ms is not None
