"""Runs steps on a GPU: plan → rows → ids. The shell that reads the clock, as `engine.runner` is."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from firstlight.kernels import ops
from firstlight.shared.blocks import Buffer
from firstlight.shared.clock import monotonic_s
from firstlight.shared.engine.device.asked import read
from firstlight.shared.engine.device.buckets import CAPTURED_ROWS_MAX, PIECE_TOKENS, Limits
from firstlight.shared.engine.device.memory import Need, pool_blocks, workspace_bytes
from firstlight.shared.engine.device.model import GpuModel
from firstlight.shared.engine.device.steps import Steps
from firstlight.shared.engine.kv.manager import Moves
from firstlight.shared.engine.kv.storage import KvStorage, block_bytes
from firstlight.shared.engine.plan import EngineConfig, StepPlan, StepRows
from firstlight.shared.engine.sampler import Sampled

MOVED_BLOCKS_MAX = 32
"""Blocks that are packed on the device at once, on their way to the host tier or from it."""


class GpuRunner:
    """`plan.Runner`: one model, its pool on the device, its host tier in memory that stays put."""

    def __init__(self, model: GpuModel, kv: KvStorage, limits: EngineConfig) -> None:
        self._kv, self._kernels = kv, model.kernels
        self._vocab = model.config.vocab
        self._steps = Steps(
            model.decoder, model.kernels, kv.pages, step_limits(model, limits), self._vocab
        )

    @property
    def vocab(self) -> int:
        """Width of the logits."""
        return self._vocab

    @property
    def block_bytes(self) -> int:
        """Size of a block's KV."""
        return self._kv.block_bytes

    @property
    def captures(self) -> int:
        """Shapes of steps that were captured so far."""
        return self._steps.captures

    @torch.inference_mode()
    def warm(self) -> None:
        """What takes its time the first time is done now."""
        with self._kernels.here():
            self._steps.warm()

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepRows:
        """Every row that is sampled, but those behind a draft that was refused: of them it says
        only whether they failed."""
        began_s = monotonic_s()
        with self._kernels.here():
            ran = self._steps.run(plan)
        found: Iterator[Sampled] = iter(()) if ran is None else read(*ran)
        sampled = tuple(tuple(next(found) for _ in one.draws) for one in plan.sequences)
        return StepRows(sampled, (monotonic_s() - began_s) * 1000)

    @torch.inference_mode()
    def move(self, moves: Moves) -> None:
        """Packed on the device, so that each block is one copy; done when this returns."""
        with self._kernels.here():
            for part in _parts(moves.saves):
                self._save(part)
            for part in _parts(moves.fills):
                self._fill(part)

    @torch.inference_mode()
    def read_block(self, block: int) -> bytes:
        """Layers, keys then values, heads, tokens: the host tier's order."""
        with self._kernels.here():
            packed = ops.pack_blocks(self._kv.pages, [block], kernels=self._kernels.form)
        return packed.view(torch.uint8).cpu().numpy().tobytes()

    def read_slot(self, slot: int) -> bytes:
        """As `read_block`."""
        return self._kv.host[slot].view(torch.uint8).numpy().tobytes()

    def write_slot(self, slot: int, payload: Buffer) -> None:
        """What `read_block` gave, here or on another node."""
        target = self._kv.host[slot].view(torch.uint8).numpy().reshape(-1)
        target[:] = np.frombuffer(payload, dtype=np.uint8)

    @torch.inference_mode()
    def scrub(self, blocks: Sequence[int]) -> None:
        """Zero blocks: attention multiplies masked values by 0, which only finite ones survive."""
        numbers = torch.tensor(list(blocks), dtype=torch.int64, device=self._kv.pages.device)
        self._kv.pages.index_fill_(2, numbers, 0)

    def _save(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(block, slot) each."""
        blocks = [block for block, _ in pairs]
        packed = ops.pack_blocks(self._kv.pages, blocks, kernels=self._kernels.form)
        for run, (_, slot) in zip(packed, pairs, strict=True):
            self._kv.host[slot].copy_(run, non_blocking=True)
        self._kernels.wait()

    def _fill(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(slot, block) each."""
        pool, host = self._kv.pages, self._kv.host
        packed = torch.empty(len(pairs), *host.shape[1:], dtype=pool.dtype, device=pool.device)
        for run, (slot, _) in zip(packed, pairs, strict=True):
            run.copy_(host[slot], non_blocking=True)
        blocks = [block for _, block in pairs]
        ops.unpack_blocks(packed, pool, blocks, kernels=self._kernels.form)
        self._kernels.wait()


def step_limits(model: GpuModel, limits: EngineConfig) -> Limits:
    """The largest step of an engine with these limits."""
    context = min(limits.context_max, model.config.context_max)
    return Limits(limits.step_tokens_max, limits.sequences_max, context)


def largest_step_bytes(model: GpuModel, wanted: EngineConfig, rows_max: int | None = None) -> int:
    """The most that a step of an engine with these limits holds beside weights and pool."""
    largest = step_limits(model, wanted).largest
    rows = largest.rows if rows_max is None else min(rows_max, largest.rows)
    return workspace_bytes(
        model.widths,
        rows=rows,
        sampled=min(rows, wanted.sequences_max * (1 + wanted.hint_ids_max)),
        pieces=-(-largest.context // PIECE_TOKENS),
    )


def with_pool(model: GpuModel, wanted: EngineConfig, memory_share: float) -> EngineConfig:
    """The same limits, with as many blocks as the memory has room for that was free before the
    model was placed.

    Raises:
        ConfigError: there is no room for a pool in which every sequence has a block.

    """
    # What is captured keeps its memory to itself, so the largest captured step counts beside it.
    workspace = largest_step_bytes(model, wanted) + largest_step_bytes(
        model, wanted, CAPTURED_ROWS_MAX
    )
    need = Need(model.weights_bytes, workspace, block_bytes(model.config, model.form))
    blocks = pool_blocks(
        model.kernels.free_bytes, memory_share, need, least=max(wanted.sequences_max, 1)
    )
    return replace(wanted, blocks=blocks)


def _parts(pairs: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
    for start in range(0, len(pairs), MOVED_BLOCKS_MAX):
        yield pairs[start : start + MOVED_BLOCKS_MAX]
