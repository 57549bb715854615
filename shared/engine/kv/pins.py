"""Which prefixes are evicted last, and how many: those pinned by name, and those handed over.

A pin is no hold: pinned blocks give way when nothing else is left, so that pins can never keep a
sequence from running; evicted, they go to the host tier as others do, and what is computed again is
pinned again. All pins together cover at most a share of the pool. A handover, a prefix that was
computed for another node to fetch, is pinned until it is released or its time is over; where there
is no room the oldest handovers are let go first, and a pin that still does not fit is refused.
"""

from collections.abc import Sequence

from firstlight.shared.engine.kv.manager import KvManager
from firstlight.shared.engine.plan import EngineConfig, Handover
from firstlight.shared.errors import CapacityError, RequestError


class Pins:
    """Pinned chains of block hashes, each from its first block on."""

    def __init__(self, kv: KvManager, config: EngineConfig) -> None:
        self._kv, self._config = kv, config
        self._blocks_max = int(config.blocks * config.pinned_share)
        self._chains: dict[bytes, tuple[bytes, ...]] = {}
        """By the hash of the last block."""
        self._handovers: dict[str, Handover] = {}
        """By request, the oldest first."""
        self.dropped = 0
        """Handovers that were let go before they were released."""

    @property
    def pins(self) -> int:
        """Chains that are pinned by name."""
        return len(self._chains)

    @property
    def handovers(self) -> int:
        """Handovers that are pinned."""
        return len(self._handovers)

    def pin(self, hashes: Sequence[bytes]) -> None:
        """Pin a chain; harmless if it is. Raises `RequestError` or `CapacityError`."""
        if not hashes:
            raise RequestError("a prefix of no full block cannot be pinned")
        if hashes[-1] in self._chains:
            return
        if not self._fits(hashes):
            raise CapacityError(
                f"{len(hashes)} blocks cannot be pinned: {self._kv.pinned} of at most "
                f"{self._blocks_max} are"
            )
        self._chains[hashes[-1]] = tuple(hashes)
        self._kv.pin(hashes)

    def unpin(self, hashes: Sequence[bytes]) -> None:
        """Take a pin back; harmless if there is none."""
        if hashes and (chain := self._chains.pop(hashes[-1], None)) is not None:
            self._kv.unpin(chain)

    def hand_over(self, request: str, epoch: int, hashes: Sequence[bytes], now: float) -> Handover:
        """Pin what was computed for another node; one that does not fit is not pinned at all."""
        self._let_go(request)
        made = Handover(request, epoch, tuple(hashes), now + self._config.handover_s)
        while self._handovers and len(self._handovers) >= self._config.handovers_max:
            self._drop_oldest()
        if self._config.handovers_max and self._fits(hashes):
            self._handovers[request] = made
            self._kv.pin(hashes)
        else:
            self.dropped += 1
        return made

    def release(self, handover: Handover) -> None:
        """The other node has it, or never will; harmless if it was let go."""
        if self._handovers.get(handover.request) == handover:
            self._let_go(handover.request)

    def expire(self, now: float) -> None:
        """Let go of handovers whose time is over; all have the same time, so the oldest first."""
        while self._handovers and next(iter(self._handovers.values())).until_s <= now:
            self._drop_oldest()

    def clear(self) -> None:
        """Nothing is pinned any more."""
        for chain in self._chains.values():
            self._kv.unpin(chain)
        self._chains.clear()
        while self._handovers:
            self._drop_oldest()

    def _fits(self, hashes: Sequence[bytes]) -> bool:
        """Whether there is room, perhaps after letting go of handovers; none are for nothing."""
        own = set(hashes)
        named = own.union(*self._chains.values())
        if len(named) > self._blocks_max:
            return False
        while self._kv.pinned + self._kv.unpinned(hashes) > self._blocks_max:
            self._drop_oldest()
        return True

    def _drop_oldest(self) -> None:
        self._let_go(next(iter(self._handovers)))
        self.dropped += 1

    def _let_go(self, request: str) -> None:
        made = self._handovers.pop(request, None)
        if made is not None:
            self._kv.unpin(made.hashes)
