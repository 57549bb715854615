"""Root-mean-square normalization, with the residual's sum or without."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from firstlight.kernels.gpu.launch import INTERPRETED, check_device, narrow, triton_dtype

_TILE_VALUES = 2048
WIDTH_MAX = 32_768
"""A row is one tile, held in registers between its sum of squares and its scaling."""


@triton.jit
def norm_kernel(
    rows,
    residual,
    weight,
    out,
    total,
    count,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A program norms ROWS whole rows.

    Grid: (⌈count / ROWS⌉). Tile: [ROWS, BLOCK], BLOCK = WIDTH rounded up to a power of two, ROWS =
    2048 / BLOCK but at least 1; both follow the width alone, so a row's sum has one order.
    Shapes: rows, residual, out, total [count, WIDTH]; weight [WIDTH]. Dtypes: float32, bfloat16 or
    float16, one for all but the weight; sums in float32.
    Reads rows (and residual) and weight, writes out (and total): 2 (4) · count · WIDTH values.
    Roofline: bandwidth; 4 operations a value.
    Errors: none here; the launcher refuses a width above 32,768.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < count) & (column < WIDTH)
    place = row * WIDTH + column
    x = tl.load(rows + place, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        x += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
        rounded = narrow(x, DTYPE, INTERPRETED)
        tl.store(total + place, rounded, mask=inside)
        x = rounded.to(tl.float32)
    mean = tl.sum(x * x, 1) / WIDTH
    scale = tl.math.rsqrt(mean + eps)
    w = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    tl.store(out + place, narrow(x * scale[:, None] * w, DTYPE, INTERPRETED), mask=inside)


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `kernels.reference.norm`."""
    out = torch.empty_like(rows)
    _launch(rows, None, weight, eps, out, None)
    return out


def add_rms_norm(
    rows: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """See `kernels.reference.norm`."""
    out, total = torch.empty_like(rows), torch.empty_like(rows)
    _launch(rows, residual, weight, eps, out, total)
    return out, total


def _launch(
    rows: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    out: Tensor,
    total: Tensor | None,
) -> None:
    check_device("rows", rows)
    count, width = rows.shape
    if width > WIDTH_MAX:
        raise ValueError(f"rows has a width of {width}, expected at most {WIDTH_MAX}")
    if count == 0:
        return
    block = triton.next_power_of_2(width)
    height = max(1, _TILE_VALUES // block)
    norm_kernel[(triton.cdiv(count, height),)](
        rows,
        rows if residual is None else residual,
        weight,
        out,
        out if total is None else total,
        count,
        eps,
        WIDTH=width,
        BLOCK=block,
        ROWS=height,
        RESIDUAL=residual is not None,
        DTYPE=triton_dtype(rows.dtype),
        INTERPRETED=INTERPRETED,
        num_warps=4 if block * height <= 4096 else 16,
    )
