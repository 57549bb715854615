"""Attention of many rows a sequence over pages: tiles of rows, an online softmax over the keys."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from firstlight.kernels.gpu.attention import KEYS, attend_tile, factor_of, scales_or
from firstlight.kernels.gpu.launch import (
    INTERPRETED,
    check_device,
    check_float8,
    narrow,
    triton_dtype,
)
from firstlight.kernels.pages import BLOCK_ROWS
from firstlight.kernels.plan import TILE_ROWS, AttentionPlan

_LINES = 128
"""Rows × query heads that share a key head, of one program."""


@triton.jit
def prefill_kernel(
    queries,
    pages,
    scales,
    tables,
    spans,
    tiles,
    out,
    table_width,
    side_rows,
    factor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    LINES: tl.constexpr,
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
    """A program takes ROWS rows of a sequence with the GROUP query heads of one key head.

    Grid: (tiles · PARTS, KV_HEADS); a tile of the plan is cut into PARTS programs. Tiles: queries
    and sums [LINES, BLOCK_DIM], keys and values [KEYS, BLOCK_DIM]. Keys come in tiles of KEYS at
    absolute positions, in ascending order; tiles that a window hides from all rows are left out,
    and would have added exact zeros. So a row's sums depend on its own position alone.
    Shapes: queries, out [n, KV_HEADS · GROUP, DIM]; pages [2, blocks, KV_HEADS, 16, DIM]; scales
    [2, blocks, KV_HEADS, 16]; tables [sequences, table_width]; spans [sequences, 3]; tiles
    [tiles, 2]. `side_rows` = blocks · KV_HEADS · 16, `factor` = log₂ e / √DIM.
    Dtypes: queries and out float32, bfloat16 or float16; pages the same, or int8 or float8 with
    float32 scales; sums in float32.
    Reads queries once, keys and values up to each row's position once a program; writes out once.
    Roofline: matrix products, 4 · DIM operations a pair of query head and visible key.
    Errors: none; the plan was checked against the pool.
    """
    tile = tl.program_id(0) // PARTS
    kv_head = tl.program_id(1)
    sequence = tl.load(tiles + 2 * tile)
    offset = tl.load(tiles + 2 * tile + 1) + tl.program_id(0) % PARTS * ROWS
    first = tl.load(spans + 3 * sequence)
    count = tl.load(spans + 3 * sequence + 1)
    context = tl.load(spans + 3 * sequence + 2)
    if offset < count:
        line = tl.arange(0, LINES)
        row = offset + line // GROUP
        position = context - count + row
        column = tl.arange(0, BLOCK_DIM)[None, :]
        head = kv_head * GROUP + line % GROUP
        place = ((first + row).to(tl.int64) * KV_HEADS * GROUP + head)[:, None] * DIM + column
        valid = ((line < ROWS * GROUP) & (row < count))[:, None] & (column < DIM)
        query = tl.load(queries + place, mask=valid, other=0.0)
        most = tl.full([LINES], float("-inf"), tl.float32)
        total = tl.zeros([LINES], tl.float32)
        sums = tl.zeros([LINES, BLOCK_DIM], tl.float32)

        begin = context - count + offset
        end = tl.minimum(begin + ROWS, context)
        last = tl.cdiv(end, KEYS)
        skipped, kept = 0, 0
        if WINDOW > 0:
            kept = tl.minimum(tl.cdiv(SINKS, KEYS), last)
            skipped = tl.maximum(tl.maximum(begin - WINDOW + 1, 0) // KEYS - kept, 0)
        for step in range(0, last - skipped):
            start = tl.where(step < kept, step, step + skipped) * KEYS
            most, total, sums = attend_tile(
                query,
                most,
                total,
                sums,
                start,
                end,
                position,
                tables + sequence.to(tl.int64) * table_width,
                pages,
                scales,
                side_rows,
                kv_head,
                factor,
                KV_HEADS,
                DIM,
                BLOCK_DIM,
                KEYS,
                BLOCK_ROWS,
                WINDOW,
                SINKS,
                SCALED,
                DTYPE,
                INTERPRETED,
            )
        tl.store(out + place, narrow(sums / total[:, None], DTYPE, INTERPRETED), mask=valid)


def attend_prefill(
    queries: Tensor, pages: Tensor, plan: AttentionPlan, scales: Tensor | None
) -> Tensor:
    """See `kernels.reference.prefill`."""
    check_device("queries", queries)
    check_float8("pages", pages.dtype, queries)
    out = torch.empty_like(queries)
    if plan.rows == 0:
        return out
    _, heads, dim = queries.shape
    _, blocks, kv_heads, _, _ = pages.shape
    group = heads // kv_heads
    lines = max(_LINES, triton.next_power_of_2(group))
    rows = 1 << ((lines // group).bit_length() - 1)
    parts = -(-min(plan.rows_max, TILE_ROWS) // rows)
    prefill_kernel[(plan.tiles.shape[0] * parts, kv_heads)](
        queries,
        pages,
        scales_or(scales, queries),
        plan.tables,
        plan.spans,
        plan.tiles,
        out,
        plan.tables.shape[1],
        blocks * kv_heads * BLOCK_ROWS,
        factor_of(dim),
        KV_HEADS=kv_heads,
        GROUP=group,
        ROWS=rows,
        PARTS=parts,
        LINES=lines,
        DIM=dim,
        BLOCK_DIM=triton.next_power_of_2(dim),
        KEYS=KEYS,
        BLOCK_ROWS=BLOCK_ROWS,
        WINDOW=plan.window,
        SINKS=plan.sinks,
        SCALED=scales is not None,
        DTYPE=triton_dtype(queries.dtype),
        INTERPRETED=INTERPRETED,
        num_warps=8,
        num_stages=2,
    )
    return out
