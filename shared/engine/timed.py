"""A runner without a model, for time that is simulated: a step takes what a table says.

Scheduler, KV and links are the real ones over it. Sans-IO: it neither sleeps nor reads a clock; it
says how long a step took, and whoever steps the engine lets that much time pass.

An id is a pure function of all ids before it, their positions and the draw, so an answer is the
same in every batch, preempted and resumed. Its KV is made to fail loudly: a token's slot holds a
digest of all tokens up to it, as a model's KV depends on all of them. Before a row is sampled the
whole chain is read through the block table, so a wrong block, a stale row or a block that was not
filled raises here, and does not become a wrong word somewhere.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from firstlight.shared.blocks import BLOCK_TOKENS, Buffer, blocks_for
from firstlight.shared.engine.kv.manager import Moves
from firstlight.shared.engine.plan import SequencePlan, StepPlan, StepRows
from firstlight.shared.engine.sampler import Sampled
from firstlight.shared.engine.steptable import StepTable
from firstlight.shared.engine.timed_ids import ROOT, digest_after, id_after, noise_of
from firstlight.shared.sampling import Draw, History
from firstlight.shared.types import TokenLogprobs

Slots = NDArray[np.uint64]
"""Per token (digest before, digest after, id); 0 where nothing was written."""
_BEFORE, _AFTER, _ID = 0, 1, 2
_HELD_BYTES = BLOCK_TOKENS * 3 * 8


class TimedRunner:
    """`plan.Runner` over digests in place of keys and values."""

    def __init__(
        self,
        table: StepTable,
        *,
        blocks: int,
        host_blocks: int,
        vocab: int,
        answer_ids: Sequence[int] = (),
    ) -> None:
        """Answers are made of `answer_ids`, of the whole vocabulary if there are none."""
        self._table, self._vocab = table, vocab
        self._answer_ids = answer_ids or range(vocab)
        self._pool: Slots = np.zeros((blocks, BLOCK_TOKENS, 3), dtype=np.uint64)
        self._host: Slots = np.zeros((host_blocks, BLOCK_TOKENS, 3), dtype=np.uint64)
        self._copied_blocks = 0
        """Since the last step, which pays for them."""
        self._tips: WeakKeyDictionary[History, tuple[int, int]] = WeakKeyDictionary()
        """A sequence's last known position, and the digest there; gone with the sequence."""

    @property
    def vocab(self) -> int:
        """Ids are below this."""
        return self._vocab

    @property
    def block_bytes(self) -> int:
        """What the table says that a block has, filled up; at least its digests and ids."""
        return max(self._table.block_bytes, _HELD_BYTES)

    def run(self, plan: StepPlan) -> StepRows:
        """Write all rows, then read each sequence's chain and choose its ids."""
        ends = [self._write(one) for one in plan.sequences]
        sampled = tuple(
            self._sample(one, end) for one, end in zip(plan.sequences, ends, strict=True)
        )
        ms = self._table.step_ms(plan) + self._copied_blocks * self._table.block_copy_ms
        self._copied_blocks = 0
        return StepRows(sampled, ms)

    def move(self, moves: Moves) -> None:
        """Copy blocks to the host tier, then others from it."""
        for block, slot in moves.saves:
            self._host[slot] = self._pool[block]
        for slot, block in moves.fills:
            self._pool[block] = self._host[slot]
        self._copied_blocks += len(moves.saves) + len(moves.fills)

    def read_block(self, block: int) -> bytes:
        """The digests and ids of a block of the pool."""
        return self._filled(self._pool[block])

    def read_slot(self, slot: int) -> bytes:
        """As `read_block`, of the host tier."""
        return self._filled(self._host[slot])

    def write_slot(self, slot: int, payload: Buffer) -> None:
        """What `read_block` gave."""
        held = np.frombuffer(payload, dtype=np.uint64, count=_HELD_BYTES // 8)
        self._host[slot] = held.reshape(BLOCK_TOKENS, 3)

    def scrub(self, blocks: Sequence[int]) -> None:
        """Nothing was written to these blocks."""
        self._pool[list(blocks)] = 0

    def _filled(self, held: Slots) -> bytes:
        payload: bytes = held.tobytes()
        return payload.ljust(self.block_bytes, b"\0")

    def _write(self, one: SequencePlan) -> int:
        """Append a sequence's rows to its chain; returns the digest after the last."""
        digest = ROOT if one.start == 0 else int(self._pool[_place(one, one.start - 1)][_AFTER])
        assert digest, f"{one.request}: no KV before position {one.start}"
        for position, token in enumerate(one.ids, start=one.start):
            before, digest = digest, digest_after(digest, token, position)
            self._pool[_place(one, position)] = (before, digest, token)
        return digest

    def _sample(self, one: SequencePlan, end_digest: int) -> tuple[Sampled, ...]:
        end = one.start + len(one.ids)
        chain = self._pool[list(one.table[: blocks_for(end)])].reshape(-1, 3)[:end]
        assert chain[0, _BEFORE] == ROOT, f"{one.request}: block {one.table[0]} is not a first one"
        broken = np.flatnonzero(chain[1:, _BEFORE] != chain[:-1, _AFTER])
        assert not broken.size, f"{one.request}: KV of another prefix at position {broken[0] + 1}"
        assert chain[-1, _AFTER] == end_digest, f"{one.request}: overwritten in the same step"
        if not one.draws:
            return ()
        self._check_own(one, chain, end - one.drafted)
        digests = chain[end - len(one.draws) :, _AFTER]
        return tuple(
            _choose(int(digest), draw, self._answer_ids)
            for digest, draw in zip(digests, one.draws, strict=True)
        )

    def _check_own(self, one: SequencePlan, chain: Slots, known: int) -> None:
        """The chain is this sequence's, and not a whole one of somebody else."""
        history = one.draws[0].history
        seen, digest = self._tips.get(history, (0, 0))
        if seen:
            assert chain[seen - 1, _AFTER] == digest, f"{one.request}: the KV of another sequence"
        else:
            ids = set(chain[:known, _ID].tolist())
            assert ids == set(history.seen(()).tolist()), f"{one.request}: not its ids"
        self._tips[history] = known, int(chain[known - 1, _AFTER])


def _place(one: SequencePlan, position: int) -> tuple[int, int]:
    return one.table[position // BLOCK_TOKENS], position % BLOCK_TOKENS


def _choose(digest: int, draw: Draw, ids: Sequence[int]) -> Sampled:
    noise = noise_of(draw.sampling, draw.seed, draw.choice)
    token = id_after(digest, noise, ids)
    if draw.sampling.logprobs is None:
        return Sampled(token)
    return Sampled(token, TokenLogprobs(0.0, ((token, 0.0),)))  # no other id was possible
