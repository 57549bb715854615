"""Which classes do not decode in a step, so that it computes prompts and nothing else.

Beside many who decode a prompt gets little of a step. That is right while promises hold. Once more
prompts wait than could begin in time, those who decode are served and the others are not, so a
class **rests**:

    those of a higher class have not begun     for as long as it is promised a first id in
    some of its own are late                   for the share of that time that the late ones are of
                                               those who decode; all of it once they are as many

Late is who has not begun when its class's promise is over. Then the class decodes once, and may
rest again: gaps become longer by a rest at most, and steps do not, so a cancel takes no longer.
What is left of a rest is dropped if a whole step of prompts does not fit into it, so few late ones
beside many who decode change nothing. A prompt that is being computed lets nobody rest, however
long it is: that keeps the gaps of others short when a single one comes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from firstlight.shared.engine.plan import Slas


@dataclass(frozen=True, slots=True)
class Unbegun:
    """A sequence of which nothing was computed here, and which could begin."""

    level: int
    """Its class, after ageing."""
    late: bool


class Rests:
    """Since when each class rests that does; levels are priority classes, 0 is the highest."""

    def __init__(self, slas: Slas) -> None:
        self._slas = slas
        self._since_s: dict[int, float] = {}

    def resting(
        self, decoding: Iterable[int], unbegun: Sequence[Unbegun], step_ms: float, now: float
    ) -> Set[int]:
        """Levels of those that need an id and get none in this step, which may take `step_ms`."""
        if not unbegun:  # nearly always
            self._since_s = {}
            return frozenset()
        counts, levels, late = Counter(decoding), set[int](), Counter[int]()
        for one in unbegun:
            levels.add(one.level)
            late[one.level] += one.late
        highest = min(levels)
        before, self._since_s = self._since_s, {}
        for level, count in counts.items():
            share = 1.0 if highest < level else min(1.0, late[level] / count)
            since_s = before.get(level, now)
            if now + step_ms / 1000 <= since_s + share * self._slas.of(level):
                self._since_s[level] = since_s
        return self._since_s.keys()

    def in_vain(self) -> None:
        """Nobody found a place meanwhile: all decode as ever, and what rested did not begin to."""
        self._since_s = {}
