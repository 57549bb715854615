"""What happens next in simulated time: a heap of calls, in an order that nothing else decides.

At the same instant what arrives comes before what ends, and of two alike the one that was planned
first.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import isfinite
from typing import Any

EVENTS_MAX = 10_000_000

Event = tuple[float, int, int, Callable[..., None], tuple[Any, ...]]


class Events:
    """The future. `now` is the time of what happens now."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[Event] = []
        self._count = 0

    def at(self, at_s: float, what: Callable[..., None], *of: Any, late: bool = False) -> None:
        """Call `what(*of)` then; `late`: after all else at the same instant."""
        assert isfinite(at_s), at_s
        assert at_s >= self.now, (at_s, self.now)
        assert len(self._heap) < EVENTS_MAX
        self._count += 1
        heappush(self._heap, (at_s, int(late), self._count, what, of))

    def run(self, until_s: float) -> None:
        """Let everything happen that is planned up to then, and what comes of it."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now, _, _, what, of = heappop(heap)
            what(*of)
