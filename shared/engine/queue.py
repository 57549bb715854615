"""Who is served first: the order among waiting sequences, and its inverse, who gives way.

Priority class, then who is due first (arrival and the SLA of its class), then the earliest deadline
of its own, then the shortest prefill, then arrival. Times count in whole seconds, so that arrivals
at about the same time are equals.

Waiting `ageing_slas` times the SLA of a class lifts a sequence to the class above, where it waits
on as one of that class does, up to the highest. So it is there after a fixed time, and what it is
due does not change on the way: whoever arrives after that instant stands behind it. Those before it
are finitely many, each ends after at most its `max_tokens`, and nobody overtakes: that is why all
are served, whatever keeps coming.
"""

from math import inf

from firstlight.shared.engine.plan import EngineConfig
from firstlight.shared.engine.sequence import Sequence

Importance = tuple[int, int, int, int, float]


def level(sequence: Sequence, now: float, config: EngineConfig) -> int:
    """Priority class after ageing; 0 is the highest."""
    reached, waited_s = int(sequence.request.priority), sequence.waiting_s(now)
    while reached and waited_s >= (lift_s := config.ageing_slas * config.slas.of(reached)):
        reached, waited_s = reached - 1, waited_s - lift_s
    return reached


def lifted_s(sequence: Sequence, now: float, config: EngineConfig) -> float:
    """When waiting on lifts a waiting sequence to the next class; inf, if it is in the highest."""
    reached, waited_s = int(sequence.request.priority), sequence.waiting_s(now)
    while reached and waited_s >= (lift_s := config.ageing_slas * config.slas.of(reached)):
        reached, waited_s = reached - 1, waited_s - lift_s
    return now + lift_s - waited_s if reached else inf


def importance(sequence: Sequence, now: float, config: EngineConfig) -> Importance:
    """Sorts the most important sequence first."""
    return (
        level(sequence, now, config),
        int(sequence.due_s),
        int(sequence.deadline_s),
        sequence.uncached_tokens,
        sequence.arrived_s,
    )


class WaitingQueue:
    """Sequences that hold no blocks."""

    def __init__(self) -> None:
        self._sequences: dict[str, Sequence] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._sequences)

    def push(self, sequence: Sequence, now: float) -> None:
        """Wait from now on."""
        sequence.queued_since_s = now
        self._sequences[sequence.id] = sequence

    def get(self, request: str) -> Sequence | None:
        """The waiting sequence of a request."""
        return self._sequences.get(request)

    def take(self, request: str, now: float) -> Sequence:
        """Wait no longer."""
        sequence = self._sequences.pop(request)
        sequence.waited_s, sequence.queued_since_s = sequence.waiting_s(now), None
        return sequence

    def discard(self, request: str) -> None:
        """Forget a request; harmless if it does not wait."""
        self._sequences.pop(request, None)

    def all(self) -> list[Sequence]:
        """Everyone, in no order that matters."""
        return list(self._sequences.values())
