"""Where the KV of a prefix should come from: compute it, fetch it, or both at once.

For n blocks that another node or tier has and this one has not, with c ms to compute a block and
f ms to transfer one behind a wait of w ms:

    recompute = n·c        fetch = w + n·f        split = x·c,  x = (w + n·f) / (c + f)

Split computes x blocks from the front while the others arrive from the back, and goes on where both
meet. It is never slower than the better of the two, and a bandwidth that was misjudged moves only
the meeting point. Fetch alone is worth it where almost nothing would be computed anyway: a step
cannot be interrupted, and its cores can serve others, or the transfer.

Ways may be forbidden; then it is the best of the others, and to compute where none is left.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from math import inf

GAIN_SHARE_MIN = 0.1
GAIN_MS_MIN = 20.0
"""What a fetch saves must be a tenth of the recompute, and this much: it costs others something."""
FRONT_SHARE_MIN = 0.15
"""Fetch alone if less than this share would be computed."""


class Way(StrEnum):
    """How a prefix comes to be here."""

    RECOMPUTE = "recompute"
    FETCH = "fetch"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class Source:
    """Where blocks could come from, as measured."""

    wait_ms: float
    """Until the first block is on its way."""
    block_ms: float
    """A block's transfer."""
    measured: bool = True
    """Whether `block_ms` is more than a guess."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done about the missing blocks, and what it should take."""

    way: Way
    ms: float
    reason: str


def plan_prefix(
    blocks: int, compute_ms: float, source: Source, ways: Collection[Way] = tuple(Way)
) -> Plan:
    """The best of `ways` to get `blocks` blocks that take `compute_ms` each to compute here."""
    recompute = blocks * compute_ms
    fetch = source.wait_ms + blocks * source.block_ms
    front = min(float(blocks), fetch / (compute_ms + source.block_ms)) if fetch else 0.0
    split = front * compute_ms
    told = f"{blocks} blocks: recompute {recompute:.0f} ms, fetch {fetch:.0f}, split {split:.0f}"
    loaded = split if Way.SPLIT in ways else fetch if Way.FETCH in ways else inf
    worth = recompute - loaded >= max(GAIN_MS_MIN, GAIN_SHARE_MIN * recompute)
    if loaded == inf or (Way.RECOMPUTE in ways and not worth):
        return Plan(Way.RECOMPUTE, recompute, told)
    alone = source.measured and front < FRONT_SHARE_MIN * blocks
    if Way.FETCH in ways and (alone or Way.SPLIT not in ways):
        return Plan(Way.FETCH, fetch, told)
    return Plan(Way.SPLIT, split, told)
