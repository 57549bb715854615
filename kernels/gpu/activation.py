"""The gate of an MLP."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from firstlight.kernels.gpu.launch import INTERPRETED, check_device, narrow, triton_dtype

_BLOCK = 1024


@triton.jit
def silu_mul_kernel(
    gate_up,
    out,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A program takes BLOCK columns of one row.

    Grid: (rows, ⌈WIDTH / BLOCK⌉). Tile: [BLOCK]. Shapes: gate_up [rows, 2 · WIDTH], out [rows,
    WIDTH]. Dtypes: float32, bfloat16 or float16, the same for both; computed in float32.
    Reads 2 and writes 1 value a result. Roofline: bandwidth; an exponential, a division and two
    products a result. Errors: none.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    first = gate_up + row * 2 * WIDTH + column
    gate = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(first + WIDTH, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * WIDTH + column, narrow(value, DTYPE, INTERPRETED), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `kernels.reference.activation`."""
    check_device("gate_up", gate_up)
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        silu_mul_kernel[(rows, triton.cdiv(width, _BLOCK))](
            gate_up,
            out,
            WIDTH=width,
            BLOCK=_BLOCK,
            DTYPE=triton_dtype(gate_up.dtype),
            INTERPRETED=INTERPRETED,
            num_warps=4,
        )
    return out
