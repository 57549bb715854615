"""Which rows of a step look at which pages, checked once and laid out as kernels read it.

A plan is made on the host, from numbers that the host has; what it holds on the device was checked
before it went there, so that no kernel can leave its pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firstlight.kernels.pages import BLOCK_ROWS, Span

VERIFY_ROWS_MAX = 8
"""Rows a sequence that `attend_decode` takes: one to sample from, and the hints after it."""
TILE_ROWS = 128
"""Rows of a sequence that lie beside each other in one tile of `attend_prefill`."""
HOLE = -1
"""A block that a table no longer has, since no row looks at it."""


@dataclass(frozen=True)
class AttentionPlan:
    """The rows of one step, sequence after sequence."""

    tables: Tensor
    """int32 [sequences, width]: blocks of positions 0 on; HOLE where there is none."""
    spans: Tensor
    """int32 [sequences, 3]: first row, rows, tokens visible to the last row."""
    tiles: Tensor
    """int32 [tiles, 2]: sequence, first of up to TILE_ROWS rows counted from the span's first."""
    positions: Tensor
    """int64 [rows]: absolute position of each row."""
    slots: Tensor
    """int64 [rows]: block · 16 + offset where a row's keys and values go; −1: nowhere."""
    rows: int
    rows_max: int
    """Of the longest span."""
    context_max: int
    blocks: int
    """Of the pool that the tables were checked against."""
    window: int
    """A row at position p sees positions above p − window; 0: all up to p."""
    sinks: int
    """Positions below this are seen whatever the window is."""


def plan_attention(
    spans: Sequence[Span],
    tables: Sequence[Sequence[int]],
    blocks: int,
    *,
    window: int = 0,
    sinks: int = 0,
    device: torch.device | str = "cpu",
) -> AttentionPlan:
    """A table may have holes (−1) where its span's window shows nothing, but nowhere else.

    Raises:
        ValueError: names the span, the table or the number that is wrong.

    """
    if window < 0 or sinks < 0 or (sinks and not window):
        raise ValueError(f"window is {window} and sinks {sinks}, expected sinks only with a window")
    if len(spans) != len(tables):
        raise ValueError(f"tables are {len(tables)}, expected one for each of {len(spans)} spans")
    row = 0
    for index, (span, table) in enumerate(zip(spans, tables, strict=True)):
        if span.first_row != row:
            raise ValueError(f"spans[{index}] is {span}, expected it to start at row {row}")
        if not 0 < span.rows <= span.context:
            raise ValueError(f"spans[{index}] is {span}, expected rows from 1 to its context")
        _check_table(index, span, table, blocks, window, sinks)
        row += span.rows
    width = max((len(table) for table in tables), default=0)
    padded = [[*table, *[HOLE] * (width - len(table))] for table in tables]
    tiles = [
        (index, start)
        for index, span in enumerate(spans)
        for start in range(0, span.rows, TILE_ROWS)
    ]
    places = [
        (position, table[position // BLOCK_ROWS] * BLOCK_ROWS + position % BLOCK_ROWS)
        for span, table in zip(spans, tables, strict=True)
        for position in range(span.first_position, span.context)
    ]
    positions, slots = torch.tensor(places, dtype=torch.int64).view(-1, 2).T.contiguous()

    def numbers(values: Sequence[Sequence[int]], columns: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).view(len(values), columns).to(device)

    return AttentionPlan(
        tables=numbers(padded, width),
        spans=numbers([(span.first_row, span.rows, span.context) for span in spans], 3),
        tiles=numbers(tiles, 2),
        positions=positions.to(device),
        slots=slots.to(device),
        rows=row,
        rows_max=max((span.rows for span in spans), default=0),
        context_max=max((span.context for span in spans), default=0),
        blocks=blocks,
        window=window,
        sinks=sinks,
    )


def _check_table(
    index: int, span: Span, table: Sequence[int], blocks: int, window: int, sinks: int
) -> None:
    need = -(-span.context // BLOCK_ROWS)
    if len(table) < need:
        raise ValueError(
            f"tables[{index}] has {len(table)} blocks, expected {need} for {span.context} tokens"
        )
    first_seen = max(0, span.first_position - window + 1) if window else 0
    for place, block in enumerate(table[:need]):
        start = place * BLOCK_ROWS
        seen = start < sinks or start + BLOCK_ROWS > first_seen
        if not (0 <= block < blocks or (block == HOLE and not seen)):
            raise ValueError(f"tables[{index}][{place}] is {block}, expected 0 to {blocks - 1}")
