"""What this edge has sent where: an expectation of which core has which prefix cached.

A core's cache is not asked; an edge knows what it sent there itself. An entry is a guess for 2 s
from the moment a request is routed (so the next decision sees it), and holds for 10 minutes once
the first commit says that the prompt was computed. That commit also says how many prompt tokens the
core found, which corrects how far this core is believed.

Of a prompt every eighth block is remembered, and its last: whoever has one has all before it. So
65,536 of them are eight million tokens, what twenty cores hold.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from firstlight.shared.blocks import BLOCK_TOKENS, CHECKPOINT_BLOCKS, checkpoints
from firstlight.shared.estimate import DecayingSum

GUESSED_S = 2.0
KEPT_S = 600.0
BLOCKS_MAX = 65_536
CORES_MAX = 1_024
TRAFFIC_HALF_LIFE_S = 10.0
TRAFFIC_MAX = 4_096
"""Checkpoints whose requests are counted."""
BELIEF_STEP = 0.2
"""How far one answer moves the belief in a core."""


@dataclass(eq=False, slots=True)
class _Life:
    """Of a core: what was sent in it is there until it is lost."""

    core: str
    lost: bool = False


_NOBODY: dict[_Life, float] = {}


class SentPrefixes:
    """Block hash → cores that should have it, until when; the longest unused is dropped first."""

    def __init__(self, *, blocks_max: int = BLOCKS_MAX, block_tokens: int = BLOCK_TOKENS) -> None:
        """`blocks_max`: remembered ones. `block_tokens`: of the blocks that it is told of; a
        simulation's are coarser, and all of them are remembered."""
        self._blocks_max, self._block_tokens = blocks_max, block_tokens
        self._every = max(1, CHECKPOINT_BLOCKS * BLOCK_TOKENS // block_tokens)
        """Of so many blocks one is remembered."""
        self._until: OrderedDict[bytes, dict[_Life, float]] = OrderedDict()
        self._lives: OrderedDict[str, _Life] = OrderedDict()
        """Of each core the one that runs."""
        self._belief: OrderedDict[str, float] = OrderedDict()
        self._all = DecayingSum(TRAFFIC_HALF_LIFE_S)
        self._traffic: OrderedDict[bytes, DecayingSum] = OrderedDict()

    def __len__(self) -> int:
        """Blocks remembered."""
        return len(self._until)

    def resident(self, hashes: Sequence[bytes], now: float) -> dict[str, int]:
        """Prompt tokens that each core should have cached, of a prompt with these block hashes."""
        blocks: dict[str, int] = {}
        marks = self._marks(hashes)
        first = len(self._until.get(hashes[marks[0]], ())) if marks else 0
        # Whoever has a block has all before it. So the deepest is looked for first: most often all
        # that have anything are found there.
        for mark in reversed(marks):
            if len(blocks) == first:
                break
            for life, until in self._until.get(hashes[mark], _NOBODY).items():
                if until > now and not life.lost and life.core not in blocks:
                    blocks[life.core] = mark + 1
        return {
            core: int(depth * self._block_tokens * self._belief.get(core, 1.0))
            for core, depth in blocks.items()
        }

    def sent(self, core: str, hashes: Sequence[bytes], now: float) -> None:
        """A request with these block hashes is on its way to `core`."""
        self._put(core, hashes, now + GUESSED_S, now)
        self._all.add(1.0, now)
        for index in reversed(checkpoints(len(hashes))):
            counted = self._traffic.setdefault(hashes[index], DecayingSum(TRAFFIC_HALF_LIFE_S))
            counted.add(1.0, now)
            self._traffic.move_to_end(hashes[index])
        while len(self._traffic) > TRAFFIC_MAX:
            self._traffic.popitem(last=False)

    def traffic(self, hashes: Sequence[bytes], tokens: int, now: float) -> float:
        """The share of late requests that begin with the first `tokens` of this prompt."""
        blocks, share = tokens // self._block_tokens, 0.0
        for index in checkpoints(len(hashes)):
            counted = self._traffic.get(hashes[index])
            if counted is None or (index + 1 > blocks and share):
                break
            share = counted.value(now) / max(1.0, self._all.value(now))
        return min(1.0, share)

    def withdraw(self, core: str, hashes: Sequence[bytes], now: float) -> None:
        """It was not sent after all: take back what `sent` said at `now`, and no more."""
        life = self._lives.get(core)
        for block in (hashes[mark] for mark in self._marks(hashes)):
            lives = self._until.get(block, _NOBODY)
            if life is not None and lives.get(life) == now + GUESSED_S:
                del lives[life]
                if not lives:
                    del self._until[block]

    def computed(
        self,
        core: str,
        hashes: Sequence[bytes],
        *,
        expected_tokens: int,
        cached_tokens: int,
        now: float,
    ) -> None:
        """The first commit came: the core has the prompt, and had `cached_tokens` of it before.

        `expected_tokens`: what `resident` said when the request was routed.
        """
        self._put(core, hashes, now + KEPT_S, now)
        if expected_tokens <= 0:
            return
        truth = min(1.0, cached_tokens / expected_tokens)
        belief = self._belief.pop(core, 1.0)
        self._belief[core] = belief + BELIEF_STEP * (truth - belief)
        if len(self._belief) > CORES_MAX:
            self._belief.popitem(last=False)

    def forget(self, core: str) -> None:
        """The core was lost, and its cache with it. A region's cores are lost together, while
        answers of others run: what each was sent is not looked for."""
        self._belief.pop(core, None)
        if (life := self._lives.pop(core, None)) is not None:
            life.lost = True

    def _marks(self, hashes: Sequence[bytes]) -> list[int]:
        """Indices of the blocks that stand for a prompt."""
        return checkpoints(len(hashes), self._every)[: self._blocks_max]

    def _put(self, core: str, hashes: Sequence[bytes], until: float, now: float) -> None:
        life = self._life(core)
        # Deepest first, so that of one prompt the first blocks are the last to be dropped.
        for block in (hashes[mark] for mark in reversed(self._marks(hashes))):
            lives = self._until.setdefault(block, {})
            if life not in lives:  # else there are no more than before
                for gone in [one for one, end in lives.items() if end <= now or one.lost]:
                    del lives[gone]
            lives[life] = max(until, lives.get(life, 0.0))
            self._until.move_to_end(block)
        while len(self._until) > self._blocks_max:
            self._until.popitem(last=False)

    def _life(self, core: str) -> _Life:
        life = self._lives.setdefault(core, _Life(core))
        self._lives.move_to_end(core)
        if len(self._lives) > CORES_MAX:
            _, longest_unused = self._lives.popitem(last=False)
            longest_unused.lost = True
        return life
