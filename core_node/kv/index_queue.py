"""What is still to be written to the KV index, and what need not be written again. Sans-IO.

A prefix that every second request shares would be written with every second request; so the queue
remembers what it took lately, and takes it again only when half of the entry's life is over, or if
the tier is another. A write that was lost is forgotten, and comes again with the next request.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence

from firstlight.core_node.kv.index_keys import Tier, Write
from firstlight.shared.blocks import checkpoints

WRITES_MAX = 16_384
"""Writes that wait; beyond that the oldest is dropped."""
REMEMBERED_MAX = 131_072
"""Checkpoints known to be written; beyond that the one written first is forgotten, and may be
written once too often.
"""


class WriteQueue:
    """The writes of one node."""

    def __init__(self, node: str, *, refresh_s: float) -> None:
        self._node = node
        self._refresh_s = refresh_s
        self._waiting: deque[Write] = deque()
        self._written: OrderedDict[bytes, tuple[Tier, float]] = OrderedDict()
        self.dropped = 0
        """Writes lost since the start, for want of room or of a server."""

    def __len__(self) -> int:
        """How many writes wait."""
        return len(self._waiting)

    def hold(self, hashes: Sequence[bytes], tier: Tier, now: float) -> None:
        """The node has this chain, from its first block on."""
        for mark in checkpoints(len(hashes)):
            block = hashes[mark]
            written = self._written.get(block)
            if written is not None and written[0] == tier and now - written[1] < self._refresh_s:
                continue
            self._written[block] = (tier, now)
            self._written.move_to_end(block)
            if len(self._written) > REMEMBERED_MAX:
                self._written.popitem(last=False)
            self._add(Write(hashes[0], block, self._node, tier))

    def delete(self, hashes: Sequence[bytes], marks: Sequence[int], node: str, epoch: int) -> None:
        """What a node said at these checkpoints, in that epoch, is wrong."""
        for mark in marks:
            if node == self._node:
                self._written.pop(hashes[mark], None)
            self._add(Write(hashes[0], hashes[mark], node, None, epoch))

    def gone(self, block: bytes) -> None:
        """The node no longer has this block: if it comes again, that is news."""
        self._written.pop(block, None)

    def take(self, count: int) -> list[Write]:
        """The oldest writes, at most `count`; they no longer wait."""
        return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def lost(self, writes: Sequence[Write]) -> None:
        """These were taken, and did not arrive."""
        self.dropped += len(writes)
        for write in writes:
            if write.tier is not None:
                self._written.pop(write.block, None)

    def forget_written(self) -> None:
        """The server has lost what it had: all is to be written again."""
        self._written.clear()

    def clear(self) -> None:
        """Nothing waits and nothing was written: what the node had is gone."""
        self._waiting.clear()
        self._written.clear()

    def _add(self, write: Write) -> None:
        if len(self._waiting) == WRITES_MAX:
            self.lost([self._waiting.popleft()])
        self._waiting.append(write)
