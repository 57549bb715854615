"""How keys and values lie in memory, and which rows of a step look at which of them.

The pool of one layer is `[2, blocks, kv_heads, BLOCK_ROWS, head_dim]`: keys, then values. The rows
of one block and head are one contiguous run, so a gather by block table copies few long runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

BLOCK_ROWS = 16
"""Tokens a block."""


@dataclass(frozen=True)
class PageForm:
    """What the numbers in a pool are, and in which order those of one block and head lie."""

    name: str
    dtype: torch.dtype


FLOAT_PAGES = PageForm("f32", torch.float32)
HALF_PAGES = PageForm("f16-keys-by-dimension", torch.float16)
"""Halves; the keys of a block and head are [head_dim, BLOCK_ROWS] in the place of the transposed:
sixteen keys are the lanes of a vector."""


@dataclass(frozen=True)
class Span:
    """The consecutive rows of a step that belong to one sequence."""

    first_row: int
    rows: int
    context: int
    """Tokens visible to the last row, itself included: its position + 1."""

    @property
    def first_position(self) -> int:
        """Absolute position of the first row."""
        return self.context - self.rows


@dataclass(frozen=True)
class Heads:
    """Shape of attention: `heads` query heads in groups over `kv_heads`, and how far back a row
    sees."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    """Tokens that a row sees, itself included; 0: all before it."""
    sinks: int = 0
    """First tokens of a sequence that stay visible beside a window, as if they stood right before
    it: rows bring queries of their own for them, behind queries, keys and values."""

    @property
    def row_heads(self) -> int:
        """Heads of a row: queries, keys, values, and the queries for sinks."""
        return self.heads + 2 * self.kv_heads + (self.heads if self.sinks else 0)

    @property
    def group(self) -> int:
        """Query heads that share one key and value head."""
        return self.heads // self.kv_heads


def check_spans(spans: Sequence[Span], tables: Sequence[Sequence[int]], blocks: int) -> int:
    """Rows of the step, after checking that spans follow each other and tables reach far enough.

    Raises:
        ValueError: names the span that is wrong.

    """
    if len(spans) != len(tables):
        raise ValueError(f"{len(spans)} spans but {len(tables)} block tables")
    row = 0
    for index, (span, table) in enumerate(zip(spans, tables, strict=True)):
        if span.first_row != row or not 0 < span.rows <= span.context:
            raise ValueError(f"span {index} is {span}, expected to start at row {row}")
        need = -(-span.context // BLOCK_ROWS)
        if len(table) < need:
            raise ValueError(f"span {index} needs {need} blocks, its table has {len(table)}")
        if not 0 <= min(table[:need]) <= max(table[:need]) < blocks:
            raise ValueError(f"span {index} names a block outside of 0…{blocks - 1}")
        row += span.rows
    return row
