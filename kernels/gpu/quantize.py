"""Rows in 8 bits with a scale of their own."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from firstlight.kernels.gpu.launch import (
    INTERPRETED,
    check_device,
    check_float8,
    narrow,
    round_half_even,
    triton_dtype,
)

WIDTH_MAX = 32_768
_TILE_VALUES = 2048


@triton.jit
def bounded(x):
    """Float32 without NaN (0 instead) and within ±65,504."""
    x = tl.where(x == x, x, 0.0)
    return tl.minimum(tl.maximum(x, -65504.0), 65504.0)


@triton.jit
def scale_of(most, LARGEST: tl.constexpr):
    """The scale of rows whose largest magnitudes are `most`; LARGEST is the largest code."""
    scale = tl.math.div_rn(most, tl.full(most.shape, LARGEST, tl.float32))
    return tl.where(scale > 0, scale, 1.0)


@triton.jit
def codes_of(x, scale, LARGEST: tl.constexpr, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    """Codes of bounded float32 rows [rows, columns]."""
    value = tl.math.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))
    value = tl.minimum(tl.maximum(value, -LARGEST), LARGEST)
    if DTYPE == tl.int8:
        codes = round_half_even(value).to(tl.int8)
    else:
        codes = narrow(value, DTYPE, INTERPRETED)
    return codes


@triton.jit
def quantize_kernel(
    rows,
    codes,
    scales,
    count,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    LARGEST: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A program quantizes ROWS whole rows.

    Grid: (⌈count / ROWS⌉). Tile: [ROWS, BLOCK], BLOCK = WIDTH rounded up to a power of two.
    Shapes: rows, codes [count, WIDTH]; scales [count]. Dtypes: rows float32, bfloat16 or float16;
    codes int8 or float8_e4m3fn; scales float32.
    Reads rows, writes a byte a value and 4 a row. Roofline: bandwidth.
    Errors: none; NaN becomes 0 and an infinity 65,504. float8 needs sm_89 or later.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < count)[:, None] & (column < WIDTH)
    place = row[:, None] * WIDTH + column
    x = bounded(tl.load(rows + place, mask=inside, other=0.0).to(tl.float32))
    scale = scale_of(tl.max(tl.abs(x), 1), LARGEST)
    tl.store(codes + place, codes_of(x, scale, LARGEST, DTYPE, INTERPRETED), mask=inside)
    tl.store(scales + row, scale, mask=row < count)


def quantize_rows(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """See `kernels.reference.quantize`."""
    check_device("rows", rows)
    check_float8("dtype", dtype, rows)
    width = rows.shape[-1]
    if width > WIDTH_MAX:
        raise ValueError(f"rows has a width of {width}, expected at most {WIDTH_MAX}")
    codes = torch.empty_like(rows, dtype=dtype)
    scales = torch.empty(rows.shape[:-1], dtype=torch.float32, device=rows.device)
    count = scales.numel()
    if count:
        block = triton.next_power_of_2(width)
        height = max(1, _TILE_VALUES // block)
        quantize_kernel[(triton.cdiv(count, height),)](
            rows,
            codes,
            scales,
            count,
            WIDTH=width,
            BLOCK=block,
            ROWS=height,
            LARGEST=127.0 if dtype == torch.int8 else 448.0,
            DTYPE=triton_dtype(dtype),
            INTERPRETED=INTERPRETED,
            num_warps=4 if block * height <= 4096 else 16,
        )
    return codes, scales
