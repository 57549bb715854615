"""Two timers that tell a lost core from a slow one.

Link: no frame for 1.5 s; a core sends one at least every 250 ms. Progress: frames come, but `steps`
has not moved for max(3 s, 10 · step) although work is queued: the engine hangs while its process
lives. A long prefill moves `steps`, chunk by chunk.
"""

from dataclasses import dataclass
from enum import StrEnum

from firstlight.shared.types import Load

LINK_SILENT_S = 1.5
PROGRESS_STUCK_S = 3.0
PROGRESS_STUCK_STEPS = 10.0
CHECK_LATE_S = 0.5
"""A check that comes later than this after the last one says that we stood still, not the core."""


class Lost(StrEnum):
    """Which timer ran out."""

    SILENT = "silent"
    STUCK = "stuck"


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
        """max(3 s, 10 · the slowest step that the core has reported)."""
        table = self._load.step_ms if self._load is not None else ()
        step_s = max((ms for _, ms in table), default=0.0) / 1000.0
        return max(self._stuck_s, PROGRESS_STUCK_STEPS * step_s)
