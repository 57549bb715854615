"""What happened to each assignment on this core: marks, told to its edge at the end.

They are noted on the event loop and on the engine's thread, so a lock guards them; it is held for
an append, and nothing is noted for each token. Nothing decides by a mark: losing one loses nothing.
"""

import threading
from dataclasses import dataclass, field

from firstlight.shared.types import (
    MARK_DETAIL_CHARS_MAX,
    MARK_WHAT_CHARS_MAX,
    MARKS_MAX,
    Mark,
)

ASSIGNMENTS_MAX = 4096
"""More than a core takes at a time; beyond it the oldest's marks are forgotten."""
_KEPT_MAX = MARKS_MAX - 1
"""Marks of one assignment: the first ones and the latest, with a word on those between."""


@dataclass(slots=True)
class _Timeline:
    began_s: float
    marks: list[Mark] = field(default_factory=list)
    dropped: int = 0

    def add(self, mark: Mark) -> None:
        if len(self.marks) < _KEPT_MAX:
            self.marks.append(mark)
        else:
            self.marks[-1] = mark
            self.dropped += 1

    def told(self) -> tuple[Mark, ...]:
        marks = list(self.marks)
        if self.dropped:
            marks.insert(-1, Mark("left out", marks[-1].ms, f"{self.dropped} marks before this"))
        # The engine's thread notes a step's turns when the step is over, under its beginning.
        return tuple(sorted(marks, key=lambda mark: mark.ms))


class Timelines:
    """The marks of the assignments that run or wait, by handle. Thread-safe."""

    def __init__(self, assignments_max: int = ASSIGNMENTS_MAX) -> None:
        self._assignments_max = assignments_max
        self._lock = threading.Lock()
        self._timelines: dict[str, _Timeline] = {}

    def __len__(self) -> int:
        """How many assignments are followed."""
        return len(self._timelines)

    def begin(self, handle: str, now: float) -> None:
        """An assignment's `Open` is here: its marks count from `now`."""
        with self._lock:
            self._timelines[handle] = _Timeline(now)
            if len(self._timelines) > self._assignments_max:
                del self._timelines[next(iter(self._timelines))]

    def note(self, handle: str, what: str, now: float, detail: str = "") -> None:
        """Something happened. Texts are cut to what a mark may hold; an ended one gets no more."""
        with self._lock:
            timeline = self._timelines.get(handle)
            if timeline is not None:
                ms = max(0.0, (now - timeline.began_s) * 1e3)
                what, detail = what[:MARK_WHAT_CHARS_MAX], detail[:MARK_DETAIL_CHARS_MAX]
                timeline.add(Mark(what, ms, detail))

    def marks(self, handle: str) -> tuple[Mark, ...]:
        """The marks so far, in order of time; none of an assignment that has ended."""
        with self._lock:
            timeline = self._timelines.get(handle)
            return () if timeline is None else timeline.told()

    def end(self, handle: str) -> tuple[Mark, ...]:
        """The marks of an assignment that has ended, which are then forgotten."""
        with self._lock:
            timeline = self._timelines.pop(handle, None)
            return () if timeline is None else timeline.told()
