"""What one step of the engine asks of the model: a value, made by the runner, checked on the way
in."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firstlight.kernels.pages import BLOCK_ROWS, Span

__all__ = ["SequenceRows", "Span", "StepBatch", "join_rows"]


@dataclass(frozen=True)
class StepBatch:
    """Rows of all sequences of a step, one token each, sequence after sequence."""

    ids: Tensor
    """int64 [n]: the tokens."""
    positions: Tensor
    """int64 [n]: absolute positions."""
    slots: Tensor
    """int64 [n]: block · 16 + offset where a row's keys and values go."""
    spans: tuple[Span, ...]
    """One a sequence; together they cover the rows in order."""
    block_tables: Sequence[Sequence[int]]
    """One a sequence: the blocks of its positions from 0 on."""
    logit_rows: Tensor
    """int64 [m]: the rows whose logits are wanted."""

    def __post_init__(self) -> None:
        """Refuse tensors that do not belong together."""
        rows = self.ids.shape[0]
        for name in ("ids", "positions", "slots", "logit_rows"):
            tensor: Tensor = getattr(self, name)
            if tensor.dtype != torch.int64 or tensor.dim() != 1:
                raise ValueError(
                    f"{name} is {tensor.dtype} {list(tensor.shape)}, expected int64 [n]"
                )
        if self.positions.shape[0] != rows or self.slots.shape[0] != rows:
            raise ValueError(
                f"{rows} ids, {self.positions.shape[0]} positions, {self.slots.shape[0]} slots"
            )
        if sum(span.rows for span in self.spans) != rows:
            raise ValueError(f"the spans cover {sum(s.rows for s in self.spans)} of {rows} rows")


@dataclass(frozen=True)
class SequenceRows:
    """What one sequence brings to a step."""

    ids: Sequence[int]
    """Consecutive tokens, one row each."""
    first_position: int
    """Absolute position of the first of them."""
    table: Sequence[int]
    """Blocks of positions 0 on, far enough for these rows."""
    wanted: Sequence[int] = ()
    """Which of these rows need logits."""


def join_rows(parts: Sequence[SequenceRows]) -> StepBatch:
    """The step in which these sequences run together, in this order.

    Raises:
        ValueError: a table does not reach the sequence's last row.

    """
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    wanted: list[int] = []
    spans: list[Span] = []
    for part in parts:
        first, end = len(ids), part.first_position + len(part.ids)
        if len(part.table) * BLOCK_ROWS < end:
            raise ValueError(f"{len(part.table)} blocks for {end} positions")
        ids += part.ids
        places = range(part.first_position, end)
        positions += places
        slots += [part.table[p // BLOCK_ROWS] * BLOCK_ROWS + p % BLOCK_ROWS for p in places]
        wanted += [first + row for row in part.wanted]
        spans.append(Span(first, len(part.ids), end))
    return StepBatch(
        ids=torch.tensor(ids, dtype=torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64),
        slots=torch.tensor(slots, dtype=torch.int64),
        spans=tuple(spans),
        block_tables=[part.table for part in parts],
        logit_rows=torch.tensor(wanted, dtype=torch.int64),
    )
