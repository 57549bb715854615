"""The host tier, as numbers: which slot of the host store holds which block.

Blocks that the pool evicts go here, and blocks that other nodes or the disk send arrive here; both
come back into the pool by their hash. What a sequence that lost its place had computed is here too,
its last block, which has no hash yet, included. Unlike the pool's index this one knows no chains: a
block is of use wherever its parent is. A slot is held only while a copy from it is planned, or a
sequence waits for the blocks before it or for its place: free + used + cached = total, as in the
pool.
"""

from firstlight.shared.engine.kv.pool import BlockPool
from firstlight.shared.engine.kv.prefix import PrefixIndex


class HostTier:
    """Slots, least recently used first out. With no slots it takes nothing."""

    def __init__(self, slots: int) -> None:
        self._pool = BlockPool(slots)
        self._index = PrefixIndex()

    @property
    def pool(self) -> BlockPool:
        """Where the slots are now."""
        return self._pool

    def find(self, block_hash: bytes) -> int | None:
        """The slot that holds, or is about to get, this block."""
        return self._index.find(block_hash)

    def place(self, block_hash: bytes) -> tuple[int, bytes | None] | None:
        """(slot for a block that is not here, hash of the block it held); None: no slot is free."""
        assert self._index.find(block_hash) is None
        lent = self.lend()
        if lent is not None:
            self._index.put(block_hash, lent[0])
            self.drop(lent[0])
        return lent

    def lend(self) -> tuple[int, bytes | None] | None:
        """The same for what has no hash: held, and free once it is dropped."""
        evicted: bytes | None = None
        if not self._pool.free:
            found = self._index.evict()
            if found is None:
                return None
            slot, evicted = found
            self._pool.reclaim(slot)
        return self._pool.take(), evicted

    def named(self, slot: int) -> bytes | None:
        """The hash by which a slot can be found."""
        return self._index.name(slot)

    def hold(self, slot: int) -> None:
        """Keep what a slot holds until it is dropped as often as it was held."""
        self._pool.share(slot)
        self._index.wake(slot)

    def drop(self, slot: int) -> bool:
        """One holder fewer; True if the slot is free now."""
        keep = self._index.indexed(slot)
        last = self._pool.drop(slot, keep=keep)
        if last and keep:
            self._index.idle(slot)
        return last and not keep

    def forget(self, block_hash: bytes) -> None:
        """Its content is not to be trusted; a slot that is held is free once it is dropped."""
        slot = self._index.find(block_hash)
        if slot is not None:
            self._index.remove(slot)
            if not self._pool.holders(slot):
                self._pool.reclaim(slot)

    def clear(self) -> None:
        """Forget all blocks; held slots are free once they are dropped."""
        for slot in self._index.clear():
            self._pool.reclaim(slot)
