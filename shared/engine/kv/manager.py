"""What a sequence's block table goes through: prefix hit, growth, publication, release.

Joins the pool (how many hold a block), the prefix index (who can find it) and the host tier below
them. A block with ids that are not committed is never published. Two sequences that computed the
same block end up with one: the second to publish lets its own go, which bit-equal KV within a
numerics class permits.

Nothing is copied here. What has to be, before the rows of the next step are computed, is noted as
`Moves`: first out of the pool what was evicted, then into it what the host tier had.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from firstlight.shared.blocks import BLOCK_TOKENS, BlockCounts, blocks_for
from firstlight.shared.engine.kv.host import HostTier
from firstlight.shared.engine.kv.pool import BlockPool
from firstlight.shared.engine.kv.prefix import PrefixIndex


@dataclass(frozen=True, slots=True)
class Moves:
    """Copies to make before a step's rows, in this order."""

    spills: tuple[tuple[int, bytes], ...] = ()
    """(slot, hash): what leaves the host tier, for a tier below it."""
    saves: tuple[tuple[int, int], ...] = ()
    """(block, slot): from the pool to the host tier."""
    fills: tuple[tuple[int, int], ...] = ()
    """(slot, block): from the host tier to the pool."""


@dataclass(slots=True)
class Loading:
    """Blocks on their way to the host tier for one sequence: the last one comes first.

    `front` to `end` − 1 have landed. The sequence computes its first blocks meanwhile; where both
    meet it goes on behind `end`.
    """

    end: int
    """Blocks of the sequence that are computed or loaded, in the end."""
    front: int
    hold_until_s: float = 0.0
    """Until then nothing is computed: it would come too late to be of use."""
    slots: list[int] = field(default_factory=list)
    """Of block `end` − 1 first, held."""


@dataclass(slots=True)
class Parked:
    """KV of a sequence that lost its place, in slots of the host tier that it holds."""

    tokens: int
    published: int
    """Leading blocks that the prefix index knew."""
    slots: list[tuple[int, bytes | None]]
    """(slot, hash) a block; None: it cannot be found, as a last one that is not full."""


class KvManager:
    """All block tables go through it; tables are the sequences' own lists of block numbers."""

    def __init__(
        self, blocks: int, host_slots: int = 0, *, block_tokens: int = BLOCK_TOKENS
    ) -> None:
        """`block_tokens`: of a block; a simulation may count in coarser ones, an engine cannot."""
        assert blocks > 0, blocks
        self.block_tokens = block_tokens
        self._pool = BlockPool(blocks)
        self._prefix = PrefixIndex()
        self._host = HostTier(host_slots)
        self._spills: list[tuple[int, bytes]] = []
        self._saves: dict[int, int] = {}
        """Slot → block."""
        self._fills: dict[int, int] = {}
        """Block → slot, held."""
        self._tainted: set[int] = set()
        """Held blocks whose content is not to be trusted."""
        self._scrubs: list[int] = []
        """The same of blocks that were let go since."""
        self._parked_slots_max = host_slots // 2
        """The rest stays for what is evicted, and for what arrives."""
        self._parked_slots = 0

    @property
    def counts(self) -> BlockCounts:
        """Where the blocks are now."""
        return _counts(self._pool)

    @property
    def host_counts(self) -> BlockCounts:
        """Where the slots of the host tier are now."""
        return _counts(self._host.pool)

    @property
    def available(self) -> int:
        """Blocks that could be had without taking one from a sequence."""
        return self._pool.free + self._pool.cached

    @property
    def free(self) -> int:
        """Blocks that could be had without evicting a cached one."""
        return self._pool.free

    def hit_blocks(self, hashes: Sequence[bytes], known: int) -> int:
        """Blocks of the pool that `attach` would find; one known token is left to compute."""
        found, most = 0, min(len(hashes), (known - 1) // self.block_tokens)
        while found < most and self._prefix.find(hashes[found]) is not None:
            found += 1
        return found

    def leading(self, hashes: Sequence[bytes], known: int) -> int:
        """As `hit_blocks`, with those that the host tier has."""
        found, most = 0, min(len(hashes), (known - 1) // self.block_tokens)
        while found < most and self.find(hashes[found]) != (None, None):
            found += 1
        return found

    def idle_hits(self, hashes: Sequence[bytes], hits: int) -> int:
        """Those of the first `hits` blocks that nobody holds: they count as `available`."""
        blocks = (self._prefix.find(block_hash) for block_hash in hashes[:hits])
        return sum(block is not None and self._pool.holders(block) == 0 for block in blocks)

    def attach(self, table: list[int], hashes: Sequence[bytes], known: int) -> int:
        """Fill an empty table with the longest known prefix; returns its tokens."""
        assert not table, table
        for block_hash in hashes[: (known - 1) // self.block_tokens]:
            block, slot = self.find(block_hash)
            if block is not None:
                self._pool.share(block)
                self._prefix.wake(block)
                table.append(block)
            elif slot is not None and self._restore(table, slot):
                self._prefix.put(block_hash, table[-1])
            else:
                break
        return len(table) * self.block_tokens

    def grow(self, table: list[int], tokens: int) -> bool:
        """Give a table blocks for `tokens` tokens, evicting cached ones; all of them or none."""
        missing = blocks_for(tokens, self.block_tokens) - len(table)
        if missing > self.available:
            return False
        for _ in range(missing):
            if not self._pool.free:
                self._evict()
            table.append(self._pool.take())
        return True

    def trim(self, table: list[int], tokens: int) -> None:
        """Give back what lies beyond `tokens` tokens: rows of refused drafts."""
        while len(table) > blocks_for(tokens, self.block_tokens):
            self._drop(table.pop())

    def publish(self, table: list[int], index: int, block_hash: bytes) -> None:
        """Block `index` of a table is full, computed and committed: others may find it.

        Not if its parent was flushed: nobody could reach it.
        """
        if index and not self._prefix.indexed(table[index - 1]):
            return
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

    def discard(self, table: list[int], hashes: Sequence[bytes]) -> list[int]:
        """Let go of a table whose content is not to be trusted, in whichever tier it is.

        Returns the blocks of the pool that are free now.
        """
        for block_hash in hashes:
            self._host.forget(block_hash)
        freed = []
        while table:
            block = table.pop()
            if self._prefix.indexed(block):
                self._prefix.remove(block)
            if self._drop(block):
                freed.append(block)
            else:
                self._tainted.add(block)
        return freed

    def take_scrubs(self) -> list[int]:
        """Blocks to clear before they are written to again: others held them when they were
        discarded."""
        scrubs, self._scrubs = self._scrubs, []
        return scrubs

    def land(self, block_hash: bytes) -> int | None:
        """A slot of the host tier for a block that arrives; None: it is here, or there is no room.

        The slot must be written at once, after the spills of `take_moves`.
        """
        if self._prefix.find(block_hash) is not None or self._host.find(block_hash) is not None:
            return None
        return self._place(block_hash)

    def look(self, loading: Loading, hashes: Sequence[bytes]) -> None:
        """Hold what has landed since the last look."""
        while loading.front:
            slot = self._host.find(hashes[loading.front - 1])
            if slot is None:
                return
            self._host.hold(slot)
            loading.slots.append(slot)
            loading.front -= 1

    def meet(self, table: list[int], loading: Loading, computed: int) -> None:
        """Put what has landed behind `computed` tokens into a table that has blocks for it."""
        assert len(table) >= loading.end, (len(table), loading.end)
        for index in range(computed // self.block_tokens, loading.end):
            self._unfill(table[index])  # what was parked of it is in the loaded block too
            self._fill(table[index], loading.slots[loading.end - 1 - index])
        self.abandon(loading)

    def abandon(self, loading: Loading) -> None:
        """Nobody waits for these blocks any more; those that are here stay cached."""
        while loading.slots:
            self._host.drop(loading.slots.pop())

    def park(
        self, table: list[int], hashes: Sequence[bytes], tokens: int, published: int
    ) -> Parked | None:
        """Put the first `tokens` tokens of a table into the host tier; the table stays as it is.

        None, if there is no room for all of them, or if they are not to be trusted.
        """
        blocks = table[: blocks_for(tokens, self.block_tokens)]
        over = self._parked_slots + len(blocks) > self._parked_slots_max
        if over or not self._tainted.isdisjoint(blocks):
            return None
        parked = Parked(tokens, published, [])
        for index, block in enumerate(blocks):
            full = (index + 1) * self.block_tokens <= tokens
            slot = self._slot_for(block, hashes[index] if full else None)
            if slot is None:
                self.unpark(parked)
                return None
            findable = full and self._host.find(hashes[index]) == slot
            parked.slots.append((slot, hashes[index] if findable else None))
            self._parked_slots += 1
        return parked

    def resume(self, table: list[int], parked: Parked) -> int:
        """Fill an empty table with what was parked and let go of that; returns its tokens.

        None of them if some of it was flushed, or is not to be trusted any more.
        """
        assert not table, table
        known = all(name in (None, self._host.named(slot)) for slot, name in parked.slots)
        for slot, name in parked.slots if known else ():
            block = None if name is None else self._prefix.find(name)
            if block is not None:
                self._pool.share(block)
                self._prefix.wake(block)
                table.append(block)
            elif not self._restore(table, slot):
                break
            elif name is not None and (len(table) == 1 or self._prefix.indexed(table[-2])):
                self._prefix.put(name, table[-1])
        tokens = min(parked.tokens, len(table) * self.block_tokens)
        self.unpark(parked)
        return tokens

    def unpark(self, parked: Parked) -> None:
        """Let go of what was parked; what can be found stays cached."""
        while parked.slots:
            slot, _ = parked.slots.pop()
            self._parked_slots -= 1
            if self._host.drop(slot):
                self._saves.pop(slot, None)

    def find(self, block_hash: bytes) -> tuple[int | None, int | None]:
        """(block, slot) that holds a block now, after the moves; None where it is not."""
        return self._prefix.find(block_hash), self._host.find(block_hash)

    def take_moves(self) -> Moves:
        """What is to be copied now, once; held until this call."""
        moves = Moves(
            tuple(self._spills),
            tuple((block, slot) for slot, block in self._saves.items()),
            tuple((slot, block) for block, slot in self._fills.items()),
        )
        for slot in self._fills.values():
            self._host.drop(slot)
        self._spills.clear()
        self._saves.clear()
        self._fills.clear()
        return moves

    def pin(self, hashes: Sequence[bytes]) -> None:
        """Evict these blocks last: all of a prefix, from its first block on."""
        self._prefix.pin(hashes)

    def unpin(self, hashes: Sequence[bytes]) -> None:
        """Take back what `pin` did, once."""
        self._prefix.unpin(hashes)

    @property
    def pinned(self) -> int:
        """Blocks that are pinned, whether they are here or not."""
        return self._prefix.pinned

    def unpinned(self, hashes: Sequence[bytes]) -> int:
        """How many of these are not pinned."""
        return self._prefix.unpinned(hashes)

    def flush(self) -> None:
        """Forget all prefixes; blocks that sequences hold stay theirs."""
        for block in self._prefix.clear():
            self._pool.reclaim(block)
        self._host.clear()

    def check(self) -> None:
        """Assert free + used + cached = total in both tiers."""
        self._pool.check()
        self._host.pool.check()

    def _slot_for(self, block: int, block_hash: bytes | None) -> int | None:
        """A slot that has, or will get, what a block holds; held. None: there is no room."""
        slot = self._fills.get(block)  # not copied yet: the block does not have it
        if slot is None and block_hash is not None and self._prefix.indexed(block):
            slot = self._host.find(block_hash)
            if slot is None and (slot := self._place(block_hash)) is not None:
                self._saves[slot] = block
        elif slot is None:
            slot = self._place(None)
            if slot is not None:
                self._saves[slot] = block
            return slot
        if slot is not None:
            self._host.hold(slot)
        return slot

    def _restore(self, table: list[int], slot: int) -> bool:
        self._host.hold(slot)  # or the eviction for its block might take it
        grown = self.grow(table, (len(table) + 1) * self.block_tokens)
        if grown:
            self._fill(table[-1], slot)
        self._host.drop(slot)
        return grown

    def _fill(self, block: int, slot: int) -> None:
        assert block not in self._fills, block
        self._host.hold(slot)
        self._fills[block] = slot

    def _evict(self) -> None:
        found = self._prefix.evict()
        assert found is not None
        block, block_hash = found
        self._pool.reclaim(block)
        self._unfill(block)
        if self._host.find(block_hash) is None:
            slot = self._place(block_hash)
            if slot is not None:
                self._saves[slot] = block

    def _place(self, block_hash: bytes | None) -> int | None:
        """A slot for a block, cached; held, if it has no hash."""
        placed = self._host.lend() if block_hash is None else self._host.place(block_hash)
        if placed is None:
            return None
        slot, evicted = placed
        unsaved = self._saves.pop(slot, None) is not None  # placed and evicted in one plan
        if evicted is not None and not unsaved:
            self._spills.append((slot, evicted))
        return slot

    def _unfill(self, block: int) -> None:
        """A block that was to be filled is nobody's again; its slot still has the content."""
        slot = self._fills.pop(block, None)
        if slot is not None:
            self._host.drop(slot)

    def _drop(self, block: int) -> bool:
        keep = self._prefix.indexed(block)
        last = self._pool.drop(block, keep=keep)
        if last and keep:
            self._prefix.idle(block)
        elif last:
            self._unfill(block)
            if block in self._tainted:
                self._tainted.remove(block)
                self._scrubs.append(block)
        return last


def _counts(pool: BlockPool) -> BlockCounts:
    return BlockCounts(pool.free, pool.used, pool.cached, pool.total)
