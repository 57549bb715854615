"""What the engine computed, given to a tier below it while there is nothing else to do.

So a prefix outlives its core: after a restart it is read back. Everything here runs on the engine's
thread, and the tier below never makes it wait.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from firstlight.shared.blocks import Buffer
from firstlight.shared.clock import monotonic_s, sleep_s
from firstlight.shared.engine.engine import Engine

CHAINS_MAX = 64
"""Chains that wait to be saved; beyond them the oldest is not saved."""
BLOCKS_A_TURN_MAX = 4
"""Blocks that are read before the engine's thread looks for work again."""
FULL_S = 0.01
"""At the end: how long to wait before a full tier is asked again."""


class LowerTier(Protocol):
    """A store below the engine's own tiers: the disk. Its calls do not block."""

    def holds(self, block_hash: bytes) -> bool:
        """Whether a block is there."""
        ...

    def wants(self, block_hash: bytes) -> bool:
        """Whether `offer` would take it now: not if it is on its way, nor if there is no room."""
        ...

    def offer(self, block_hash: bytes, payload: Buffer) -> bool:
        """Keep a block; False if it will not."""
        ...

    def forget(self, block_hash: bytes) -> None:
        """Forget a block, if it is there or waits."""
        ...

    def clear(self) -> None:
        """Forget all blocks, those that wait included."""
        ...


class Saver:
    """Saves chains from their first block on, the oldest chain first."""

    def __init__(self, engine: Engine, below: LowerTier) -> None:
        self._engine, self._below = engine, below
        self._chains: deque[list[bytes]] = deque(maxlen=CHAINS_MAX)
        engine.spill, engine.distrust = self._spill, self._distrust

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._chains)

    def held(self, chain: Sequence[bytes]) -> None:
        """A chain of block hashes is here as a whole."""
        self._chains.append(list(reversed(chain)))

    def clear(self) -> None:
        """A flush: nothing waits any more, and nothing was saved."""
        self._chains.clear()
        self._below.clear()

    def save(self, most: int = BLOCKS_A_TURN_MAX) -> None:
        """Hand over up to `most` blocks, as far as there is room for them."""
        while most and self._chains:
            chain = self._chains[0]
            while chain and self._below.holds(chain[-1]):
                chain.pop()
            if not chain:
                self._chains.popleft()
                continue
            if not self._below.wants(chain[-1]):
                return
            block_hash = chain.pop()
            payload = self._engine.read(block_hash)
            if payload is not None:
                self._below.offer(block_hash, payload)
            most -= 1

    def finish(self, limit_s: float) -> None:
        """Save what waits, within this time."""
        end_s = monotonic_s() + limit_s
        while self._chains and monotonic_s() < end_s:
            self.save()
            sleep_s(FULL_S)

    def _distrust(self, hashes: Collection[bytes]) -> None:
        for block_hash in hashes:
            self._below.forget(block_hash)

    def _spill(self, block_hash: bytes, read: Callable[[], bytes]) -> None:
        if self._below.wants(block_hash):
            self._below.offer(block_hash, read())
