"""What a bounded directory of blocks holds, what goes first, and how long it rests. Sans-IO.

Room is counted in slots, each as wide as one file of ours; a file of another width takes as many
whole slots as it touches. free + used + cached = total, at all times:

    cached   blocks that can be found
    used     the block under way, files of other namespaces, files that wait for their removal

One slot is always kept for the block under way. So a block is evicted only after a newer one is
safely there, never for a write that then fails, and the bound holds in mid-write too.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

REST_S = 30.0
REST_S_MAX = 300.0


@dataclass(frozen=True, slots=True)
class Found:
    """What lies in a directory, as (file name, slots), the least recently used first."""

    blocks: tuple[str, ...] = ()
    """Ours, one slot each."""
    others: tuple[tuple[str, int], ...] = ()
    """Blocks of other namespaces: of use to nobody now, perhaps again after a roll-back."""
    spoiled: tuple[tuple[str, int], ...] = ()
    """Of use to nobody, ever: cut short, or the remains of an interrupted write."""


class DiskIndex:
    """Knows files by name. Least recently used goes first, other namespaces before all of ours."""

    def __init__(self, total: int) -> None:
        assert total >= 2, total
        self.total = total
        self._blocks: OrderedDict[str, None] = OrderedDict()
        self._others: OrderedDict[str, int] = OrderedDict()
        self._other_slots = 0
        self._doomed: OrderedDict[str, int] = OrderedDict()
        self._doomed_slots = 0
        self._writing = 0

    @property
    def cached(self) -> int:
        """Blocks that can be found."""
        return len(self._blocks)

    @property
    def used(self) -> int:
        """Slots taken by anything else; what lies beyond the bound at the start is not shown."""
        taken = self._other_slots + self._doomed_slots + self._writing
        return min(taken, self.total - self.cached)

    @property
    def free(self) -> int:
        """Slots that hold nothing."""
        return self.total - self.used - self.cached

    @property
    def doomed(self) -> str | None:
        """A file that must be removed before the next write, if there is one."""
        return next(iter(self._doomed), None)

    def restore(self, found: Found) -> None:
        """Begin anew from what lies in the directory; what is too much is doomed."""
        self._blocks = OrderedDict.fromkeys(found.blocks)
        self._others = OrderedDict(found.others)
        self._other_slots = sum(self._others.values())
        self._doomed, self._doomed_slots = OrderedDict(), 0
        self._doom(found.spoiled)
        self._trim()

    def holds(self, name: str) -> bool:
        """Whether the block can be found; no use of it."""
        return name in self._blocks

    def touch(self, name: str) -> bool:
        """The same, as a use."""
        if name not in self._blocks:
            return False
        self._blocks.move_to_end(name)
        return True

    def begin(self) -> None:
        """A block is under way. Nothing doomed is left from before."""
        assert not self._writing
        assert self.free > 0, (self.used, self.cached, self.total)
        self._writing = 1

    def abandon(self) -> None:
        """It did not get there."""
        self._writing = 0

    def land(self, name: str) -> int:
        """It is there; returns how many files are doomed for it."""
        assert self._writing, name
        self._writing = 0
        self.removed(name)  # it was dropped while it was under way, and is there anew
        self._blocks[name] = None
        self._blocks.move_to_end(name)
        return self._trim()

    def drop(self, name: str) -> None:
        """A block is not to be found any more; nothing if it is not."""
        if name in self._blocks:
            del self._blocks[name]
            self._doom([(name, 1)])

    def clear(self) -> None:
        """Drop all blocks of ours."""
        self._doom((name, 1) for name in self._blocks)
        self._blocks.clear()

    def removed(self, name: str) -> None:
        """A doomed file is gone."""
        self._doomed_slots -= self._doomed.pop(name, 0)

    def _trim(self) -> int:
        """Leave one slot beside all that stays."""
        dropped = 0
        while self.cached + self._other_slots >= self.total:
            if self._others:
                name, slots = self._others.popitem(last=False)
                self._other_slots -= slots
            else:
                name, slots = self._blocks.popitem(last=False)[0], 1
            self._doom([(name, slots)])
            dropped += 1
        return dropped

    def _doom(self, files: Iterable[tuple[str, int]]) -> None:
        for name, slots in files:
            self._doomed[name] = slots
            self._doomed_slots += slots


class Rest:
    """How long a disk that failed is left alone: 30 s, doubled each time in a row, at most 5 min.

    What failed may be a full disk that a person must empty: to try it with every block would cost
    a write each, and tell nobody anything new.
    """

    def __init__(self) -> None:
        self._until = float("-inf")
        self._next_s = REST_S

    @property
    def troubled(self) -> bool:
        """Whether nothing has succeeded since the last failure."""
        return self._next_s > REST_S

    def left_s(self, now: float) -> float:
        """How much of the rest is left, 0 for none."""
        return max(0.0, self._until - now)

    def failed(self, now: float) -> None:
        """Rest from now on."""
        self._until = now + self._next_s
        self._next_s = min(2 * self._next_s, REST_S_MAX)

    def succeeded(self) -> None:
        """The next rest is a short one again."""
        self._next_s = REST_S
