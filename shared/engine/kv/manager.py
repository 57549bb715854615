"""What a sequence's block table goes through: prefix hit, growth, publication, release.

Joins the pool (how many hold a block) and the prefix index (who can find it). A block with ids that
are not committed is never published. Two sequences that computed the same block end up with one:
the second to publish lets its own go, which bit-equal KV within a numerics class permits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from firstlight.shared.blocks import BLOCK_TOKENS, blocks_for
from firstlight.shared.engine.kv.pool import BlockPool
from firstlight.shared.engine.kv.prefix import PrefixIndex


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """free + used + cached = total."""

    free: int
    used: int
    cached: int
    total: int


class KvManager:
    """All block tables go through it; tables are the sequences' own lists of block numbers."""

    def __init__(self, blocks: int) -> None:
        self._pool = BlockPool(blocks)
        self._prefix = PrefixIndex()

    @property
    def counts(self) -> BlockCounts:
        """Where the blocks are now."""
        pool = self._pool
        return BlockCounts(pool.free, pool.used, pool.cached, pool.total)

    @property
    def available(self) -> int:
        """Blocks that could be had without taking one from a sequence."""
        return self._pool.free + self._pool.cached

    @property
    def free(self) -> int:
        """Blocks that could be had without evicting a cached one."""
        return self._pool.free

    def hit_blocks(self, hashes: Sequence[bytes], known: int) -> int:
        """Blocks that `attach` would find; the last known token is always left to compute."""
        found, most = 0, (known - 1) // BLOCK_TOKENS
        while found < min(most, len(hashes)) and self._prefix.find(hashes[found]) is not None:
            found += 1
        return found

    def idle_hits(self, hashes: Sequence[bytes], hits: int) -> int:
        """Those of the first `hits` blocks that nobody holds: they count as `available`."""
        blocks = (self._prefix.find(block_hash) for block_hash in hashes[:hits])
        return sum(block is not None and self._pool.holders(block) == 0 for block in blocks)

    def attach(self, table: list[int], hashes: Sequence[bytes], known: int) -> int:
        """Fill an empty table with the longest known prefix; returns its tokens."""
        assert not table, table
        for block_hash in hashes[: self.hit_blocks(hashes, known)]:
            block = self._prefix.find(block_hash)
            assert block is not None
            self._pool.share(block)
            self._prefix.wake(block)
            table.append(block)
        return len(table) * BLOCK_TOKENS

    def grow(self, table: list[int], tokens: int) -> bool:
        """Give a table blocks for `tokens` tokens, evicting cached ones; all of them or none."""
        missing = blocks_for(tokens) - len(table)
        if missing > self.available:
            return False
        for _ in range(missing):
            if not self._pool.free:
                block = self._prefix.evict()
                assert block is not None
                self._pool.reclaim(block)
            table.append(self._pool.take())
        return True

    def trim(self, table: list[int], tokens: int) -> None:
        """Give back what lies beyond `tokens` tokens: rows of refused drafts."""
        while len(table) > blocks_for(tokens):
            self._drop(table.pop())

    def publish(self, table: list[int], index: int, block_hash: bytes) -> None:
        """Block `index` of a table is full, computed and committed: others may find it."""
        if index and not self._prefix.indexed(table[index - 1]):
            return  # its parent was flushed: nobody could reach it
        held = self._prefix.find(block_hash)
        if held is None:
            if not self._prefix.indexed(table[index]):
                self._prefix.put(block_hash, table[index])
        elif held != table[index]:
            self._pool.share(held)
            self._prefix.wake(held)
            self._drop(table[index])
            table[index] = held

    def release(self, table: list[int]) -> None:
        """Let go of a whole table, last block first; what is published stays cached."""
        while table:
            self._drop(table.pop())

    def discard(self, table: list[int]) -> list[int]:
        """Let go of a table whose content is not to be trusted; returns the blocks now free."""
        freed = []
        while table:
            block = table.pop()
            if self._prefix.indexed(block):
                self._prefix.remove(block)
            if self._drop(block):
                freed.append(block)
        return freed

    def pin(self, hashes: Sequence[bytes]) -> None:
        """Evict these blocks last: all of a prefix, from its first block on."""
        self._prefix.pin(hashes)

    def flush(self) -> None:
        """Forget all prefixes; blocks that sequences hold stay theirs."""
        for block in self._prefix.clear():
            self._pool.reclaim(block)

    def check(self) -> None:
        """Assert free + used + cached = total."""
        self._pool.check()

    def _drop(self, block: int) -> bool:
        keep = self._prefix.indexed(block)
        last = self._pool.drop(block, keep=keep)
        if last and keep:
            self._prefix.idle(block)
        return last
