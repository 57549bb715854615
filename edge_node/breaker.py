"""When to leave a server alone that does not answer. Sans-IO."""

from dataclasses import dataclass

FAILURES_MAX = 3
PAUSE_S = 1.0
PAUSE_MAX_S = 30.0


@dataclass(slots=True)
class Breaker:
    """After `FAILURES_MAX` failures in a row nothing is asked for `PAUSE_S`.

    Each failure after that doubles the pause, up to `PAUSE_MAX_S`; one success ends it.
    """

    _failures: int = 0
    _until_s: float = 0.0

    def allows(self, now: float) -> bool:
        """Whether to ask now."""
        return now >= self._until_s

    def succeeded(self) -> None:
        """It answered."""
        self._failures = 0

    def failed(self, now: float) -> None:
        """It did not."""
        self._failures += 1
        more = self._failures - FAILURES_MAX
        if more >= 0:
            self._until_s = now + min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(more, 10))
