"""What both forms of attention do with one tile of keys, and what their launchers share."""

import triton
import triton.language as tl
from torch import Tensor

from firstlight.kernels.gpu.launch import narrow, wide

KEYS = 64
"""Keys a tile, at absolute boundaries."""
LOG2_E = 1.4426950408889634


@triton.jit
def sees(position, key, WINDOW: tl.constexpr, SINKS: tl.constexpr):
    """Which positions [lines, 1] see which keys [1, keys]."""
    seen = key <= position
    if WINDOW > 0:
        seen &= (key > position - WINDOW) | (key < SINKS)
    return seen


@triton.jit
def attend_tile(
    query,
    most,
    total,
    sums,
    start,
    end,
    position,
    table,
    pages,
    scales,
    side_rows,
    kv_head,
    factor,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    SCALED: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Softmax so far (largest exponent, total, sums of values) of lines, with KEYS more keys.

    Logarithms are of base 2; `factor` has the scale of scores and log₂ e. A key at or after `end`,
    or in a hole of the table, is not read: whatever lies there is no number of ours. A tile that a
    line sees nothing of leaves what the line has as it is, to the bit.
    """
    key = start + tl.arange(0, KEYS)
    block = tl.load(table + key // BLOCK_ROWS, mask=key < end, other=-1).to(tl.int64)
    held = block >= 0
    line = (block * KV_HEADS + kv_head) * BLOCK_ROWS + key % BLOCK_ROWS
    column = tl.arange(0, BLOCK_DIM)
    place = line[:, None] * DIM + column[None, :]
    inside = held[:, None] & (column < DIM)[None, :]
    keys = tl.load(pages + place, mask=inside, other=0.0)
    values = tl.load(pages + side_rows.to(tl.int64) * DIM + place, mask=inside, other=0.0)
    if SCALED and not INTERPRETED:
        keys, values = keys.to(DTYPE), values.to(DTYPE)
    scores = tl.dot(
        wide(query, INTERPRETED), tl.trans(wide(keys, INTERPRETED)), input_precision="ieee"
    )
    if SCALED:
        scores *= tl.load(scales + line, mask=held, other=0.0)[None, :]
    seen = sees(position[:, None], key[None, :], WINDOW, SINKS) & held[None, :]
    scores = tl.where(seen, scores * factor, float("-inf"))
    peak = tl.maximum(most, tl.max(scores, 1))
    finite = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp2(scores - finite[:, None])
    faded = tl.exp2(most - finite)
    total = total * faded + tl.sum(weights, 1)
    if SCALED:
        weights *= tl.load(scales + side_rows + line, mask=held, other=0.0)[None, :]
    if not INTERPRETED:
        weights = narrow(weights, DTYPE, INTERPRETED)
    more = tl.dot(weights, wide(values, INTERPRETED), input_precision="ieee")
    return peak, total, sums * faded[:, None] + more


def factor_of(dim: int) -> float:
    """What a product of query and key is multiplied by before its exponential of base 2."""
    return float(LOG2_E * dim**-0.5)


def scales_or(scales: Tensor | None, other: Tensor) -> Tensor:
    """A kernel's argument for scales; `other` where it is not read."""
    return other if scales is None else scales
