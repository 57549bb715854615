"""The prefix index: block hash → block, over full committed blocks only; and which to evict first.

Whoever holds a block holds all blocks before it, and lets go of the last one first. So in order of
letting go a block stands before its parent, and the front of that order is always a leaf: least
recently used leaf first needs no search. Pinned blocks go only when nothing else is left.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence


class PrefixIndex:
    """Which block holds which prefix, and the order of eviction among those that nobody holds."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._idle_pinned: OrderedDict[int, None] = OrderedDict()
        self._pinned: Counter[bytes] = Counter()
        """How many pins cover a hash."""

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds this prefix."""
        return self._blocks.get(block_hash)

    def indexed(self, block: int) -> bool:
        """Whether the block can be found."""
        return block in self._hashes

    def name(self, block: int) -> bytes | None:
        """The hash by which a block can be found."""
        return self._hashes.get(block)

    def put(self, block_hash: bytes, block: int) -> None:
        """Make a full committed block findable."""
        assert block_hash not in self._blocks, block
        self._blocks[block_hash] = block
        self._hashes[block] = block_hash

    def remove(self, block: int) -> None:
        """The block cannot be found any more."""
        self._idle.pop(block, None)
        self._idle_pinned.pop(block, None)
        del self._blocks[self._hashes.pop(block)]

    def idle(self, block: int) -> None:
        """Nobody holds it from now on: it may be evicted, after all that are idle already."""
        order = self._idle_pinned if self._hashes[block] in self._pinned else self._idle
        order[block] = None

    def wake(self, block: int) -> None:
        """Somebody holds it again."""
        self._idle.pop(block, None)
        self._idle_pinned.pop(block, None)

    @property
    def pinned(self) -> int:
        """Hashes that are pinned, whether their blocks are here or not."""
        return len(self._pinned)

    def unpinned(self, hashes: Sequence[bytes]) -> int:
        """How many of these are not pinned."""
        return sum(block_hash not in self._pinned for block_hash in hashes)

    def pin(self, hashes: Sequence[bytes]) -> None:
        """Evict these last; give all hashes of a prefix from its first block on."""
        for block_hash in reversed(hashes):  # a leaf stands before its parent
            self._pinned[block_hash] += 1
            block = self._blocks.get(block_hash)
            if block is not None and block in self._idle:
                del self._idle[block]
                self._idle_pinned[block] = None

    def unpin(self, hashes: Sequence[bytes]) -> None:
        """One pin fewer; without any a block counts as just used."""
        for block_hash in reversed(hashes):
            self._pinned[block_hash] -= 1
            if self._pinned[block_hash]:
                continue
            del self._pinned[block_hash]
            block = self._blocks.get(block_hash)
            if block is not None and block in self._idle_pinned:
                del self._idle_pinned[block]
                self._idle[block] = None

    def evict(self) -> tuple[int, bytes] | None:
        """Take the first block in order of eviction out of the index; None if all are held."""
        order = self._idle or self._idle_pinned
        if not order:
            return None
        block, _ = order.popitem(last=False)
        block_hash = self._hashes.pop(block)
        del self._blocks[block_hash]
        return block, block_hash

    def clear(self) -> list[int]:
        """Forget everything but what is pinned; returns the blocks that nobody holds."""
        blocks = [*self._idle, *self._idle_pinned]
        for entries in (self._blocks, self._hashes, self._idle, self._idle_pinned):
            entries.clear()
        return blocks
