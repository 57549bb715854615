"""Runs a step on the real model: plan → rows → logits → ids. The shell that reads the clock."""

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch

from firstlight.shared.blocks import Buffer
from firstlight.shared.clock import monotonic_s
from firstlight.shared.engine.kv.manager import Moves
from firstlight.shared.engine.kv.storage import KvStorage
from firstlight.shared.engine.model.batch import SequenceRows, StepBatch, join_rows
from firstlight.shared.engine.model.load import LoadedModel
from firstlight.shared.engine.plan import Runner, StepPlan, StepRows
from firstlight.shared.engine.sampler import sample_rows

COPIED_BLOCKS_MAX = 16
"""Blocks that go out and back to measure how fast that is."""
COPYING_S = 0.02
"""How long the measurement goes on, after a first round that also takes the host's memory."""


class TorchRunner:
    """One model and its KV pool."""

    def __init__(self, model: LoadedModel, kv: KvStorage) -> None:
        self._model, self._kv = model, kv

    @property
    def vocab(self) -> int:
        """Width of the logits."""
        return self._model.config.vocab

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepRows:
        """Logits of the rows that are sampled, each sampled on its own."""
        began_s = monotonic_s()
        model = self._model.transformer
        logits = model.logits(step_batch(plan), self._kv)
        draws = [draw for sequence in plan.sequences for draw in sequence.draws]
        found = iter(sample_rows(logits.numpy(), draws, model.pick))
        sampled = tuple(tuple(next(found) for _ in sequence.draws) for sequence in plan.sequences)
        return StepRows(sampled, (monotonic_s() - began_s) * 1000)

    @property
    def block_bytes(self) -> int:
        """Size of a block's KV."""
        return self._kv.block_bytes

    def move(self, moves: Moves) -> None:
        """On a CPU both tiers are memory of the same kind, and copies are just made."""
        for block, slot in moves.saves:
            self._kv.host[slot].copy_(self._kv.block(block))
        for slot, block in moves.fills:
            self._kv.block(block).copy_(self._kv.host[slot])

    def read_block(self, block: int) -> bytes:
        """Layers, keys then values, heads, tokens: the host tier's order."""
        return self._kv.block(block).contiguous().numpy().tobytes()

    def read_slot(self, slot: int) -> bytes:
        """As `read_block`."""
        return self._kv.host[slot].numpy().tobytes()

    def write_slot(self, slot: int, payload: Buffer) -> None:
        """What `read_block` gave, here or on another node."""
        target = self._kv.host[slot].numpy().reshape(-1).view(np.uint8)
        target[:] = np.frombuffer(payload, dtype=np.uint8)

    @torch.inference_mode()
    def scrub(self, blocks: Sequence[int]) -> None:
        """Zero blocks: attention multiplies masked values by 0, which only finite ones survive."""
        self._kv.k[:, list(blocks)] = 0
        self._kv.v[:, list(blocks)] = 0


def measured_copies(
    runner: Runner, blocks: int, now_s: Callable[[], float] = monotonic_s
) -> float | None:
    """Bytes a second of copies between pool and host tier, one way; None for a tier of no blocks.

    Copies the first of `blocks` blocks that both tiers have, out and back, and takes the median of
    the rounds. Pool blocks are unchanged; the slots must be nobody's.
    """
    numbers = range(min(blocks, COPIED_BLOCKS_MAX))
    if not numbers:
        return None
    same = tuple((number, number) for number in numbers)
    runner.move(Moves(saves=same, fills=same))
    rounds_s: list[float] = []
    began_s = at_s = now_s()
    while not rounds_s or at_s - began_s < COPYING_S:
        runner.move(Moves(saves=same, fills=same))
        before_s, at_s = at_s, now_s()
        rounds_s.append(at_s - before_s)
    return 2 * len(same) * runner.block_bytes / max(median(rounds_s), 1e-9)


def step_batch(plan: StepPlan) -> StepBatch:
    """The rows of a plan, as the model wants them: a sequence after the other."""
    return join_rows(
        [
            SequenceRows(
                one.ids, one.start, one.table, range(len(one.ids) - len(one.draws), len(one.ids))
            )
            for one in plan.sequences
        ]
    )
