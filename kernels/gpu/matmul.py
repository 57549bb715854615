"""Products of rows with a weight in any form.

A row's sum runs along the inputs in steps of one size, in ascending order, within one program: no
split, no atomics. The height of a tile is constant, whatever the number of rows; its width follows
the number of rows, and decides only which program computes an output.
"""

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
    wide,
)
from firstlight.kernels.matrix import Matrix

TILE_ROWS = 64


@triton.jit
def operand(codes, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    """Codes as an operand of a product with rows of DTYPE."""
    if INTERPRETED:
        codes = codes.to(tl.float32)
    else:
        codes = codes.to(DTYPE)
    return codes


@triton.jit
def product_int4(
    rows,
    place,
    valid,
    codes,
    scales,
    zeros,
    line,
    inside,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Sums [HEIGHT, WIDTH] of rows and int4 weights, a group a step: its two halves, then its
    scale."""
    HALF: tl.constexpr = GROUP // 2
    offset = tl.arange(0, HALF)
    total = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for start in range(0, INPUTS, GROUP):
        byte = line[None, :] * (INPUTS // 2) + start // 2 + offset[:, None]
        packed = tl.load(codes + byte, mask=inside[None, :], other=0)
        group = line * (INPUTS // GROUP) + start // GROUP
        scale = tl.load(scales + group, mask=inside, other=0.0)
        zero = tl.load(zeros + group, mask=inside, other=0).to(tl.int32)[None, :]
        first = rows + place[:, None] + start + offset[None, :]
        x = tl.load(first, mask=valid[:, None], other=0.0)
        y = tl.load(first + HALF, mask=valid[:, None], other=0.0)
        low = operand((packed & 15).to(tl.int32) - zero, DTYPE, INTERPRETED)
        high = operand((packed >> 4).to(tl.int32) - zero, DTYPE, INTERPRETED)
        part = tl.dot(wide(x, INTERPRETED), low, input_precision="ieee")
        part = tl.dot(wide(y, INTERPRETED), high, part, input_precision="ieee")
        total += part * scale[None, :]
    return total


@triton.jit
def product(
    rows,
    place,
    valid,
    codes,
    scales,
    line,
    inside,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    SCALED: tl.constexpr,
    APART: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Sums [HEIGHT, WIDTH] of rows and weights with a byte or more each, STEP inputs a step.

    APART adds each step's sum in float32: the tensor cores' own sums of float8 keep fewer bits.
    """
    offset = tl.arange(0, STEP)
    total = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for start in range(0, INPUTS, STEP):
        k = start + offset
        x = tl.load(
            rows + place[:, None] + k[None, :],
            mask=valid[:, None] & (k < INPUTS)[None, :],
            other=0.0,
        )
        w = tl.load(
            codes + line[None, :] * INPUTS + k[:, None],
            mask=inside[None, :] & (k < INPUTS)[:, None],
            other=0.0,
        )
        x, w = wide(x, INTERPRETED), operand(w, DTYPE, INTERPRETED)
        if GROUP < INPUTS:
            scale = tl.load(
                scales + line * (INPUTS // GROUP) + start // GROUP, mask=inside, other=0.0
            )
            total += tl.dot(x, w, input_precision="ieee") * scale[None, :]
        elif APART:
            total += tl.dot(x, w, input_precision="ieee")
        else:
            total = tl.dot(x, w, total, input_precision="ieee")
    if SCALED and GROUP == INPUTS:
        total *= tl.load(scales + line, mask=inside, other=0.0)[None, :]
    return total


@triton.jit
def matmul_kernel(
    rows,
    codes,
    scales,
    zeros,
    bias,
    row_scales,
    out,
    count,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    INT4: tl.constexpr,
    SCALED: tl.constexpr,
    BIASED: tl.constexpr,
    ROW_SCALED: tl.constexpr,
    DTYPE: tl.constexpr,
    OUT: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A program computes WIDTH outputs of HEIGHT rows.

    Grid: (⌈count / HEIGHT⌉, ⌈OUTPUTS / WIDTH⌉), rows first: neighbours in time share weights.
    Tiles: rows [HEIGHT, STEP], weights [STEP, WIDTH], sums [HEIGHT, WIDTH]. HEIGHT is always 64.
    Shapes: rows [count, INPUTS]; codes [OUTPUTS, INPUTS] (int4: half of that); scales and zeros
    [OUTPUTS, INPUTS / GROUP]; bias [OUTPUTS]; row_scales [count]; out [count, OUTPUTS].
    Dtypes: rows float32, bfloat16 or float16 with codes of the same, int8, float8 or int4, or rows
    of float8 with row_scales and codes of float8; scales float32; sums in float32; out as asked.
    Reads weights once a 64 rows, rows once a WIDTH outputs, writes out once.
    Roofline: bandwidth of the weights up to some 64 rows, products beyond (2 · INPUTS a result).
    Errors: none. float8 needs sm_89 or later.
    """
    row = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    valid, inside = row < count, column < OUTPUTS
    line = column.to(tl.int64)
    if INT4:
        total = product_int4(
            rows,
            row * INPUTS,
            valid,
            codes,
            scales,
            zeros,
            line,
            inside,
            INPUTS,
            GROUP,
            HEIGHT,
            WIDTH,
            DTYPE,
            INTERPRETED,
        )
    else:
        total = product(
            rows,
            row * INPUTS,
            valid,
            codes,
            scales,
            line,
            inside,
            INPUTS,
            GROUP,
            HEIGHT,
            WIDTH,
            STEP,
            SCALED,
            ROW_SCALED,
            DTYPE,
            INTERPRETED,
        )
    if ROW_SCALED:
        total *= tl.load(row_scales + row, mask=valid, other=0.0)[:, None]
    if BIASED:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    place = row[:, None] * OUTPUTS + column[None, :]
    mask = valid[:, None] & inside[None, :]
    tl.store(out + place, narrow(total, OUT, INTERPRETED), mask=mask)


def step_of(weight: Matrix) -> int:
    """Inputs a step: 128 bytes of a weight's row or more, within a group."""
    step = 64 if weight.form == "float" else 128
    return step if weight.group == weight.inputs else min(step, weight.group & -weight.group)


def width_of(rows: int) -> int:
    """Outputs a program: few where there are few rows, so that every processor streams weights."""
    return 32 if rows <= TILE_ROWS else 128


def matmul(
    rows: Tensor,
    weight: Matrix,
    bias: Tensor | None,
    row_scales: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """See `kernels.reference.matmul`."""
    check_device("rows", rows)
    check_float8("weight", weight.codes.dtype, rows)
    count, outputs = rows.shape[0], weight.outputs
    out = torch.empty(count, outputs, dtype=dtype, device=rows.device)
    if count == 0:
        return out
    width = width_of(count)
    matmul_kernel[(triton.cdiv(count, TILE_ROWS), triton.cdiv(outputs, width))](
        rows,
        weight.codes,
        weight.codes if weight.scales is None else weight.scales,
        weight.codes if weight.zeros is None else weight.zeros,
        weight.codes if bias is None else bias,
        weight.codes if row_scales is None else row_scales,
        out,
        count,
        INPUTS=weight.inputs,
        OUTPUTS=outputs,
        GROUP=weight.group,
        HEIGHT=TILE_ROWS,
        WIDTH=width,
        STEP=step_of(weight),
        INT4=weight.form == "int4",
        SCALED=weight.scales is not None,
        BIASED=bias is not None,
        ROW_SCALED=row_scales is not None,
        DTYPE=triton_dtype(rows.dtype),
        OUT=triton_dtype(dtype),
        INTERPRETED=INTERPRETED,
        num_warps=4 if width <= 64 else 8,
        num_stages=4,
    )
    return out
