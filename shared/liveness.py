"""What tells a lost core from a slow one. Sans-IO.

Link: no frame for 1.5 s; a core sends one at least every 250 ms. Progress: frames come, but `steps`
has not moved for max(2.5 s, 10 · step) although work is queued: the engine hangs while its process
lives. A long prefill moves `steps`, chunk by chunk.

Account: the core has counted our opens, but says for 1 s, frame after frame, that fewer requests
are in flight there than we wait for. Whatever waits at a core (for its turn, a prefix, credit, a
place that it lost) is in flight; what has ended there is told before, with or right behind the load
that counts it no more. So some of ours are nowhere, and nobody will ever answer them.
"""

from dataclasses import dataclass
from enum import StrEnum

from firstlight.shared.types import Load

LINK_SILENT_S = 1.5
PROGRESS_STUCK_S = 2.5
"""Found out within 3 s: a frame and a check come at least every 250 ms."""
PROGRESS_STUCK_STEPS = 10.0
FORGOTTEN_S = 1.0
FORGOTTEN_FRAMES = 5
"""Frames, first and last so far apart, that must all say it: a load may be one frame ahead of the
ending that it counts no more."""
SUSPECT_FRAMES = 2
"""From so many on nothing new goes there."""
CHECK_LATE_S = 0.5
"""A check that comes later than this after the last one says that we stood still, not the core."""


class Lost(StrEnum):
    """Which timer ran out."""

    SILENT = "silent"
    STUCK = "stuck"
    FORGOTTEN = "forgotten"
    """No timer: the core's own figures say that it has lost requests."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """That a core is lost, and why."""

    lost: Lost
    reason: str


class Liveness:
    """Watches one link. `frame` for every frame of the core, `check` at least every 250 ms."""

    def __init__(
        self,
        now: float,
        *,
        silent_s: float = LINK_SILENT_S,
        stuck_s: float = PROGRESS_STUCK_S,
    ) -> None:
        self._silent_s = silent_s
        self._stuck_s = stuck_s
        self._frame_at = now
        self._moved_at = now
        self._checked_at = now
        self._load: Load | None = None

    def frame(self, load: Load | None, now: float) -> None:
        """A frame came, with the core's load if it carried one."""
        self._frame_at = now
        if load is None:
            return
        last, self._load = self._load, load
        idle = load.in_flight == 0
        if idle or last is None or last.in_flight == 0 or load.steps != last.steps:
            self._moved_at = now

    def check(self, now: float) -> Verdict | None:
        """Whether the core counts as lost now.

        If our own process stood still since the last check, frames that came meanwhile are not read
        yet: both timers are given that time.
        """
        late_s = now - self._checked_at - CHECK_LATE_S
        self._checked_at = now
        if late_s > 0:
            self._frame_at = min(now, self._frame_at + late_s)
            self._moved_at = min(now, self._moved_at + late_s)
        silent_s = now - self._frame_at
        if silent_s >= self._silent_s:
            return Verdict(Lost.SILENT, f"no frame for {silent_s:.1f} s")
        load = self._load
        if load is None or load.in_flight == 0:
            return None
        stuck_s, limit_s = now - self._moved_at, self.stuck_after_s()
        if stuck_s >= limit_s:
            queued = f"{load.running} running and {load.queued} queued"
            return Verdict(Lost.STUCK, f"step {load.steps} for {stuck_s:.1f} s with {queued}")
        return None

    def stuck_after_s(self) -> float:
        """max(2.5 s, 10 · the slowest step that the core has reported)."""
        table = self._load.step_ms if self._load is not None else ()
        step_s = max((ms for _, ms in table), default=0.0) / 1000.0
        return max(self._stuck_s, PROGRESS_STUCK_STEPS * step_s)


class Account:
    """The requests of one link that we wait for, held against what the core says it has.

    It reads no clock but the times of frames, so a pause of ours, after which many frames come at
    once and in order, strikes nobody.
    """

    def __init__(self) -> None:
        self._opens = 0
        self._due: dict[str, int] = {}
        """Request → the number of its open on this link. Bounded by the requests on the link."""
        self._frames = 0
        self._since = self._latest = 0.0
        self._missing = 0

    def opened(self, request: str) -> None:
        """The request was opened on the link, perhaps once more."""
        self._opens += 1
        self._due[request] = self._opens

    def ended(self, request: str) -> None:
        """We do not wait for the request any more."""
        self._due.pop(request, None)

    def frame(self, load: Load, now: float, *, whole: bool) -> None:
        """What the core says, after all that its frame brings was taken in.

        `whole`: nothing can have been left for the next frame.
        """
        missing = 0
        if len(self._due) > load.in_flight:  # else there is nothing to count
            counted = sum(number <= load.opens_counted for number in self._due.values())
            missing = counted - load.in_flight
        if missing <= 0 or not whole:
            self._frames = 0
            return
        self._frames += 1
        if self._frames == 1:
            self._since = now
        self._latest, self._missing = now, missing

    @property
    def suspect(self) -> bool:
        """Whether the core seems to have lost requests."""
        return self._frames >= SUSPECT_FRAMES

    def check(self) -> Verdict | None:
        """Whether it has."""
        said_s = self._latest - self._since
        if self._frames < FORGOTTEN_FRAMES or said_s < FORGOTTEN_S:
            return None
        requests = f"{self._missing} request" + ("s" if self._missing > 1 else "")
        return Verdict(Lost.FORGOTTEN, f"for {said_s:.1f} s it has known nothing of {requests}")
