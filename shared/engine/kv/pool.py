"""The paged pool, as numbers: which block is free, and how many sequences hold each of the others.

No allocation of memory happens here or later: the tensors exist from the start (`kv.storage`), and
a block is an index into them. A block is free, used (held by a sequence) or cached (held by none,
but found by its hash): free + used + cached = total, at all times.
"""


class BlockPool:
    """Reference counts and a free list. Knows nothing of hashes."""

    def __init__(self, total: int) -> None:
        assert total >= 0, total
        self.total = total
        self.cached = 0
        """Blocks with no holder that are not free; `kv.manager` moves them."""
        self.used = 0
        self._free = list(range(total - 1, -1, -1))
        self._holders = [0] * total

    @property
    def free(self) -> int:
        """Blocks that hold nothing of worth."""
        return len(self._free)

    def holders(self, block: int) -> int:
        """How many sequences hold a block."""
        return self._holders[block]

    def take(self) -> int:
        """A free block, held once."""
        block = self._free.pop()
        self._holders[block] = 1
        self.used += 1
        return block

    def share(self, block: int) -> None:
        """One more holder; a cached block becomes used."""
        if self._holders[block] == 0:
            self.cached -= 1
            self.used += 1
        self._holders[block] += 1

    def drop(self, block: int, *, keep: bool) -> bool:
        """One holder fewer; True if it was the last: then it is cached if `keep`, else free."""
        assert self._holders[block] > 0, block
        self._holders[block] -= 1
        if self._holders[block]:
            return False
        self.used -= 1
        if keep:
            self.cached += 1
        else:
            self._free.append(block)
        return True

    def reclaim(self, block: int) -> None:
        """A cached block becomes free."""
        assert self._holders[block] == 0, block
        self.cached -= 1
        self._free.append(block)

    def check(self) -> None:
        """Cheap enough for every step."""
        assert self.free + self.used + self.cached == self.total, (
            self.free,
            self.used,
            self.cached,
        )
        assert self.cached >= 0, self.cached
