"""Attention of one to eight rows a sequence over pages: pieces of keys at once, merged in order.

A sequence's keys are cut at multiples of PIECE. A piece's softmax is complete in itself; a second
kernel merges a row's pieces in ascending order. Neither where a sequence stands in the step nor how
many rows it brings changes a row's sums: one tile holds eight rows, however many there are.
"""

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
from firstlight.kernels.plan import VERIFY_ROWS_MAX, AttentionPlan

PIECE = 256
"""Keys a piece."""


@triton.jit
def piece_kernel(
    queries,
    pages,
    scales,
    tables,
    spans,
    peaks,
    totals,
    partial,
    table_width,
    pieces,
    side_rows,
    factor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS_MAX: tl.constexpr,
    LINES: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PIECE: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    SCALED: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A program takes one piece of a sequence's keys with one key head and all rows.

    Grid: (sequences, KV_HEADS, pieces). Tiles: queries and sums [LINES, BLOCK_DIM], LINES =
    ROWS_MAX · GROUP rounded up to a power of two, at least 16; keys and values [KEYS, BLOCK_DIM].
    Shapes: queries [n, KV_HEADS · GROUP, DIM]; pages [2, blocks, KV_HEADS, 16, DIM]; scales [2,
    blocks, KV_HEADS, 16]; tables [sequences, table_width]; spans [sequences, 3]; peaks, totals
    [n, heads, pieces]; partial [n, heads, pieces, DIM]. `side_rows` = blocks · KV_HEADS · 16.
    Dtypes: queries float32, bfloat16 or float16; pages the same, or int8 or float8 with float32
    scales; the rest float32.
    Reads keys and values of the piece once, writes DIM + 2 numbers a row and head.
    Roofline: bandwidth, 2 · KV_HEADS · DIM values a token of context.
    Errors: none; the plan was checked against the pool. A piece that no row sees writes nothing,
    and is not read by the merge.
    """
    sequence, kv_head, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(spans + 3 * sequence)
    count = tl.load(spans + 3 * sequence + 1)
    context = tl.load(spans + 3 * sequence + 2)
    begin = piece * PIECE
    end = tl.minimum(begin + PIECE, context)
    shown = begin < context
    if WINDOW > 0:
        shown &= (end > context - count - WINDOW + 1) | (begin < SINKS)
    if shown:
        line = tl.arange(0, LINES)
        row = line // GROUP
        position = context - count + row
        valid = row < tl.minimum(count, ROWS_MAX)
        column = tl.arange(0, BLOCK_DIM)[None, :]
        head = (first + row).to(tl.int64) * KV_HEADS * GROUP + kv_head * GROUP + line % GROUP
        whole = valid[:, None] & (column < DIM)
        query = tl.load(queries + head[:, None] * DIM + column, mask=whole, other=0.0)
        most = tl.full([LINES], float("-inf"), tl.float32)
        total = tl.zeros([LINES], tl.float32)
        sums = tl.zeros([LINES, BLOCK_DIM], tl.float32)
        for start in range(begin, end, KEYS):
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
        place = head * pieces + piece
        tl.store(peaks + place, most, mask=valid)
        tl.store(totals + place, total, mask=valid)
        tl.store(partial + place[:, None] * DIM + column, sums, mask=whole)


@triton.jit
def merge_kernel(
    peaks,
    totals,
    partial,
    positions,
    out,
    pieces,
    HEADS: tl.constexpr,
    TILE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PIECE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A program merges the pieces of TILE heads of one row, in ascending order.

    Grid: (rows, ⌈HEADS / TILE⌉). Tile: [TILE, BLOCK_DIM]. Shapes and dtypes: as `piece_kernel`
    writes them; positions [n] int64; out [n, HEADS, DIM] float32, bfloat16 or float16.
    Reads what the pieces that the row sees have written, writes the row. Roofline: bandwidth.
    Errors: none.
    """
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + row)
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)
    column = tl.arange(0, BLOCK_DIM)[None, :]
    inside = head < HEADS
    whole = inside[:, None] & (column < DIM)
    most = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    sums = tl.zeros([TILE, BLOCK_DIM], tl.float32)
    last = position // PIECE + 1
    skipped, kept = 0, 0
    if WINDOW > 0:
        kept = tl.minimum(tl.cdiv(SINKS, PIECE), last)
        skipped = tl.maximum(tl.maximum(position - WINDOW + 1, 0) // PIECE - kept, 0)
    for step in range(0, last - skipped):
        piece = tl.where(step < kept, step, step + skipped)
        place = (row * HEADS + head) * pieces + piece
        own = tl.load(peaks + place, mask=inside, other=float("-inf"))
        peak = tl.maximum(most, own)
        finite = tl.where(peak == float("-inf"), 0.0, peak)
        faded, fresh = tl.exp2(most - finite), tl.exp2(own - finite)
        total = total * faded + tl.load(totals + place, mask=inside, other=0.0) * fresh
        more = tl.load(partial + place[:, None] * DIM + column, mask=whole, other=0.0)
        sums = sums * faded[:, None] + more * fresh[:, None]
        most = peak
    to = out + (row * HEADS + head)[:, None] * DIM + column
    tl.store(to, narrow(sums / total[:, None], DTYPE, INTERPRETED), mask=whole)


def attend_decode(
    queries: Tensor, pages: Tensor, plan: AttentionPlan, scales: Tensor | None
) -> Tensor:
    """See `kernels.reference.decode`; at most VERIFY_ROWS_MAX rows a sequence."""
    check_device("queries", queries)
    check_float8("pages", pages.dtype, queries)
    out = torch.empty_like(queries)
    if plan.rows == 0:
        return out
    rows, heads, dim = queries.shape
    _, blocks, kv_heads, _, _ = pages.shape
    group = heads // kv_heads
    pieces = -(-plan.context_max // PIECE)
    peaks, totals = torch.empty(2, rows, heads, pieces, device=queries.device)
    partial = torch.empty(rows, heads, pieces, dim, device=queries.device)
    piece_kernel[(plan.spans.shape[0], kv_heads, pieces)](
        queries,
        pages,
        scales_or(scales, peaks),
        plan.tables,
        plan.spans,
        peaks,
        totals,
        partial,
        plan.tables.shape[1],
        pieces,
        blocks * kv_heads * BLOCK_ROWS,
        factor_of(dim),
        KV_HEADS=kv_heads,
        GROUP=group,
        ROWS_MAX=VERIFY_ROWS_MAX,
        LINES=max(16, triton.next_power_of_2(VERIFY_ROWS_MAX * group)),
        DIM=dim,
        BLOCK_DIM=triton.next_power_of_2(dim),
        PIECE=PIECE,
        KEYS=KEYS,
        BLOCK_ROWS=BLOCK_ROWS,
        WINDOW=plan.window,
        SINKS=plan.sinks,
        SCALED=scales is not None,
        DTYPE=triton_dtype(queries.dtype),
        INTERPRETED=INTERPRETED,
        num_warps=4,
        num_stages=3,
    )
    tile = min(16, triton.next_power_of_2(heads))
    merge_kernel[(rows, -(-heads // tile))](
        peaks,
        totals,
        partial,
        plan.positions,
        out,
        pieces,
        HEADS=heads,
        TILE=tile,
        DIM=dim,
        BLOCK_DIM=triton.next_power_of_2(dim),
        PIECE=PIECE,
        WINDOW=plan.window,
        SINKS=plan.sinks,
        DTYPE=triton_dtype(queries.dtype),
        INTERPRETED=INTERPRETED,
        num_warps=4,
    )
    return out
