"""Rotary embedding of queries and keys, with the write of keys and values into their pages."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from firstlight.kernels.gpu.launch import (
    INTERPRETED,
    check_device,
    check_float8,
    narrow,
    triton_dtype,
)
from firstlight.kernels.gpu.quantize import bounded, codes_of, scale_of
from firstlight.kernels.pages import BLOCK_ROWS
from firstlight.kernels.plan import AttentionPlan

_TILE_HEADS = 8


@triton.jit
def write_half(
    pages,
    x,
    scale,
    place,
    mask,
    LARGEST: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Half of each head's dimensions, as the pool holds them."""
    if LARGEST > 0:
        tl.store(pages + place, codes_of(x, scale, LARGEST, DTYPE, INTERPRETED), mask=mask)
    else:
        tl.store(pages + place, narrow(x, DTYPE, INTERPRETED), mask=mask)


@triton.jit
def rotate_kernel(
    rows,
    cosines,
    sines,
    positions,
    slots,
    q_norm,
    k_norm,
    out,
    pages,
    scales,
    side_rows,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    NORMED: tl.constexpr,
    LARGEST: tl.constexpr,
    PAGE: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A program takes TILE heads of one row: queries, keys or values as they come.

    Grid: (rows, ⌈(HEADS + 2 · KV_HEADS) / TILE⌉). Tiles: two of [TILE, BLOCK], the halves of the
    heads; BLOCK = HALF rounded up to a power of two.
    Shapes: rows [n, HEADS + 2 · KV_HEADS, 2 · HALF]; cosines, sines [positions, HALF]; positions,
    slots [n]; q_norm, k_norm [2 · HALF]; out [n, HEADS, 2 · HALF]; pages [2, blocks, KV_HEADS, 16,
    2 · HALF]; scales [2, blocks, KV_HEADS, 16]; `side_rows` = blocks · KV_HEADS · 16.
    Dtypes: rows and out float32, bfloat16 or float16; tables float32; pages the same three, or int8
    or float8 with float32 scales. Computed in float32.
    Reads rows once and a row of each table, writes queries once and keys and values once.
    Roofline: bandwidth. Errors: none; NaN becomes 0 in a page and an infinity 65,504; a slot below
    0 writes nothing. The plan that slots come from was checked against the pool.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (head < HEADS + 2 * KV_HEADS)[:, None] & (column < HALF)
    first = rows + (row * (HEADS + 2 * KV_HEADS) + head[:, None]) * 2 * HALF + column
    a = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(first + HALF, mask=inside, other=0.0).to(tl.float32)
    turns = (head < HEADS + KV_HEADS)[:, None]
    if NORMED:
        mean = (tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF)
        scale = tl.where(head < HEADS + KV_HEADS, tl.math.rsqrt(mean + eps), 1.0)[:, None]
        norm = tl.where((head < HEADS)[:, None], q_norm + column, k_norm + column)
        a *= scale * tl.load(norm, mask=inside & turns, other=1.0).to(tl.float32)
        b *= scale * tl.load(norm + HALF, mask=inside & turns, other=1.0).to(tl.float32)
    position = tl.load(positions + row)
    angle = position * HALF + column
    cosine = tl.load(cosines + angle, mask=column < HALF, other=0.0)
    sine = tl.load(sines + angle, mask=column < HALF, other=0.0)
    x = tl.where(turns, a * cosine - b * sine, a)
    y = tl.where(turns, b * cosine + a * sine, b)

    query = inside & (head < HEADS)[:, None]
    to = out + (row * HEADS + head[:, None]) * 2 * HALF + column
    tl.store(to, narrow(x, DTYPE, INTERPRETED), mask=query)
    tl.store(to + HALF, narrow(y, DTYPE, INTERPRETED), mask=query)

    slot = tl.load(slots + row)
    kept = (head >= HEADS) & (head < HEADS + 2 * KV_HEADS) & (slot >= 0)
    fresh = tl.maximum(head - HEADS, 0)
    line = (fresh // KV_HEADS) * side_rows.to(tl.int64)
    line += (slot // BLOCK_ROWS * KV_HEADS + fresh % KV_HEADS) * BLOCK_ROWS + slot % BLOCK_ROWS
    x, y = bounded(x), bounded(y)
    scale = tl.full([TILE], 1.0, tl.float32)
    if LARGEST > 0:
        scale = scale_of(tl.maximum(tl.max(tl.abs(x), 1), tl.max(tl.abs(y), 1)), LARGEST)
        tl.store(scales + line, scale, mask=kept)
    place = line[:, None] * 2 * HALF + column
    mask = kept[:, None] & (column < HALF)
    write_half(pages, x, scale, place, mask, LARGEST, PAGE, INTERPRETED)
    write_half(pages, y, scale, place + HALF, mask, LARGEST, PAGE, INTERPRETED)


def rotate_and_write(
    rows: Tensor,
    cosines: Tensor,
    sines: Tensor,
    plan: AttentionPlan,
    pages: Tensor,
    scales: Tensor | None,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    """See `kernels.reference.rotary`."""
    check_device("rows", rows)
    check_float8("pages", pages.dtype, rows)
    _, blocks, kv_heads, _, dim = pages.shape
    heads = rows.shape[1] - 2 * kv_heads
    out = torch.empty(rows.shape[0], heads, dim, dtype=rows.dtype, device=rows.device)
    if rows.shape[0] == 0:
        return out
    q_norm, k_norm = norms or (cosines, cosines)
    rotate_kernel[(rows.shape[0], triton.cdiv(heads + 2 * kv_heads, _TILE_HEADS))](
        rows,
        cosines,
        sines,
        plan.positions,
        plan.slots,
        q_norm,
        k_norm,
        out,
        pages,
        cosines if scales is None else scales,
        blocks * kv_heads * BLOCK_ROWS,
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=dim // 2,
        BLOCK=triton.next_power_of_2(dim // 2),
        TILE=_TILE_HEADS,
        BLOCK_ROWS=BLOCK_ROWS,
        NORMED=norms is not None,
        LARGEST=0.0 if scales is None else 127.0 if pages.dtype == torch.int8 else 448.0,
        PAGE=triton_dtype(pages.dtype),
        DTYPE=triton_dtype(rows.dtype),
        INTERPRETED=INTERPRETED,
        num_warps=4,
    )
    return out
