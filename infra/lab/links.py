"""One direction of a link: what becomes of a packet that enters it now.

In this order: a cut link takes nothing; some packets are lost; the rest wait until the bytes before
them have been put on the line, at the line's speed, or are dropped when too many wait already; then
they travel for the delay, give or take the jitter. No packet overtakes another, whatever its
jitter, except those that are picked to be late: later ones pass them.

Sans-IO, and the same seed and the same packets give the same schedule.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from random import Random

QUEUE_BYTES_MAX = 256 << 10


class Drop(StrEnum):
    """Why a packet does not arrive."""

    CUT = "cut"
    LOST = "lost"
    QUEUE = "queue"
    """It found a full queue before a slow line."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How one direction of a link is. What stands here is not checked: the topology does that."""

    delay_s: float
    jitter_s: float = 0.0
    """Evenly within delay ± jitter; at most the delay."""
    loss: float = 0.0
    """Share of packets that are lost, each by its own lot."""
    bits_per_s: float | None = None
    """None: no limit."""
    queue_bytes_max: int = QUEUE_BYTES_MAX
    """Bytes that may wait for a line with a limit; a packet that finds more waiting is dropped."""
    reorder: float = 0.0
    """Share of packets that are late."""
    reorder_s: float = 0.0
    """A late packet comes this much later at most."""


class Link:
    """One direction. Ask `send` for every packet, with times that never go back."""

    def __init__(self, shape: Shape, seed: str) -> None:
        self.shape = shape
        """May be replaced at any time; packets on their way are not touched by it."""
        self.cut = False
        """A partition. Packets that are on their way still arrive."""
        self._seed = seed
        self._line_free_s = 0.0
        self._last_s = 0.0

    @cached_property
    def _rng(self) -> Random:
        """Made when the first lot is drawn: most links draw none, and there are thousands."""
        return Random(self._seed)

    def send(self, size_bytes: int, now: float) -> float | Drop:
        """When a packet that enters now leaves at the other end, or why it never does."""
        shape = self.shape
        if self.cut:
            return Drop.CUT
        if shape.loss and self._rng.random() < shape.loss:
            return Drop.LOST
        sent = now
        if shape.bits_per_s is not None:
            waiting_s = max(0.0, self._line_free_s - now)
            waiting_bytes = waiting_s * shape.bits_per_s / 8
            if waiting_s and waiting_bytes + size_bytes > shape.queue_bytes_max:
                return Drop.QUEUE
            sent = self._line_free_s = now + waiting_s + size_bytes * 8 / shape.bits_per_s
        leaves = sent + shape.delay_s
        if shape.jitter_s:
            leaves += self._rng.uniform(-shape.jitter_s, shape.jitter_s)
        if shape.reorder and self._rng.random() < shape.reorder:
            return leaves + self._rng.uniform(0.0, shape.reorder_s)
        self._last_s = max(self._last_s, leaves)
        return self._last_s
