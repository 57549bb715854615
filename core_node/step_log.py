"""What each of the latest steps did, for whoever looks into a core that is slow. Sans-IO.

Numbers, and the handles of requests; never an id or a text. A step costs one append. Nothing
decides by it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from firstlight.shared.engine.plan import Outcome, Ran, StepResult, TurnEvent
from firstlight.shared.types import HintCount, Load

STEPS_MAX = 4096
ENTRIES_MAX = 65_536
"""Sequences and events of all steps that are kept."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What a step brought to one sequence."""

    request: str
    ids: int
    accepted: int
    """Of its drafted ids, how many agreed."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One turn of the engine's thread. Requests are named by their handles."""

    began_s: float
    ended_s: float
    """When the step's results were there."""
    handed_s: float
    """When they had been handed over, and the next turn began."""
    ran: tuple[Ran, ...] = ()
    committed: tuple[Committed, ...] = ()
    turns: tuple[TurnEvent, ...] = ()
    """Of the step's beginning."""
    arrived: tuple[tuple[str, float], ...] = ()
    """(handle, when) of requests that were taken in before it."""
    ended: tuple[tuple[str, str], ...] = ()
    """(handle, how) of requests that are no more."""
    running: int = 0
    waiting: int = 0
    kv_used_share: float = 0.0

    @property
    def entries(self) -> int:
        """Sequences and events in it; 0: nothing happened."""
        return sum(map(len, (self.ran, self.committed, self.turns, self.arrived, self.ended)))


class StepLog:
    """The latest steps; beyond either limit the oldest are forgotten."""

    def __init__(self, steps_max: int = STEPS_MAX, entries_max: int = ENTRIES_MAX) -> None:
        self._steps_max, self._entries_max = steps_max, entries_max
        self._records: deque[StepRecord] = deque()
        self._entries = 0

    def add(self, record: StepRecord) -> None:
        """Keep a step, unless nothing happened in it."""
        if not record.entries:
            return
        self._records.append(record)
        self._entries += record.entries
        while len(self._records) > self._steps_max or self._entries > self._entries_max:
            self._entries -= self._records.popleft().entries

    def records(self) -> tuple[StepRecord, ...]:
        """All that are kept, the oldest first."""
        return tuple(self._records)


def step_record(
    result: StepResult,
    load: Load,
    times: tuple[float, float, float],
    arrived: tuple[tuple[str, float], ...],
    ended: tuple[tuple[str, str], ...],
) -> StepRecord:
    """What a step did: `times` are when it began, ended and was handed over, `load` after it."""
    began_s, ended_s, handed_s = times
    return StepRecord(
        began_s=began_s,
        ended_s=ended_s,
        handed_s=handed_s,
        ran=result.ran,
        committed=tuple(map(_committed, result.outcomes)),
        turns=result.turns,
        arrived=arrived,
        ended=ended,
        running=load.running,
        waiting=load.queued,
        kv_used_share=load.kv_used_share,
    )


def drafts(outcomes: Sequence[Outcome]) -> tuple[tuple[int, int], ...]:
    """(drafted ids, how many of them agreed) of each sequence that had some."""
    counts = (sum((count for _, count in one.verified), HintCount()) for one in outcomes)
    return tuple((count.verified, count.accepted) for count in counts if count.verified)


def _committed(outcome: Outcome) -> Committed:
    accepted = sum(count.accepted for _, count in outcome.verified)
    return Committed(outcome.request, len(outcome.ids), accepted)
