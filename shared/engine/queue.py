"""Who is served first: the order among waiting sequences, and its inverse, who gives way.

Priority, lifted by one class for every `ageing_s` of waiting, so that nothing starves; then the
earliest deadline (in seconds, so that arrivals at about the same time count as equal), then the
shortest prefill, then arrival.
"""

from firstlight.shared.engine.sequence import Sequence

Importance = tuple[int, int, int, float]


def level(sequence: Sequence, now: float, ageing_s: float) -> int:
    """Priority class after ageing; may go below 0."""
    return int(sequence.request.priority) - int(sequence.waiting_s(now) / ageing_s)


def importance(sequence: Sequence, now: float, ageing_s: float) -> Importance:
    """Sorts the most important sequence first."""
    return (
        level(sequence, now, ageing_s),
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
