"""What all kernels share: how they are launched, and how numbers become wider and narrower.

Triton's interpreter runs the same kernels on a CPU (`TRITON_INTERPRET=1` before the first import).
It computes bfloat16 and 8-bit floats as the integers that hold them, and its narrowing rounds
wrongly. So an interpreted kernel widens operands to float32 (`wide`) and narrows by integer
arithmetic that is right everywhere (`narrow`); a compiled one leaves both to the hardware.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
"""Whether kernels run in the interpreter of this process."""
FINITE_MAX = 65504.0
"""What an infinity becomes in the pool of keys and values."""

_TRITON = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.int8: tl.int8,
}


def triton_dtype(dtype: torch.dtype) -> tl.dtype:
    """Triton's name of a dtype that kernels store."""
    return _TRITON[dtype]


def check_device(name: str, tensor: Tensor) -> None:
    """A kernel reads memory of a GPU, or any if it is interpreted; `meta` has none to read, so that
    a launch with it can only be compiled.

    Raises:
        ValueError: the tensor lies elsewhere.

    """
    if not (tensor.is_cuda or tensor.is_meta or INTERPRETED):
        raise ValueError(f"{name} is on {tensor.device}, expected a GPU for kernels called gpu")


def check_float8(name: str, dtype: torch.dtype, tensor: Tensor) -> None:
    """Float8 needs a GPU that has it; `tensor` says which GPU.

    Raises:
        ValueError: it is older than sm_89.

    """
    if dtype == torch.float8_e4m3fn and tensor.is_cuda:
        major, minor = torch.cuda.get_device_capability(tensor.device)
        if (major, minor) < (8, 9):
            raise ValueError(f"{name} is float8 on sm_{major}{minor}, expected sm_89 or later")


@triton.jit
def wide(x, INTERPRETED: tl.constexpr):
    """An operand of a product: itself on a device, float32 in the interpreter."""
    if INTERPRETED:
        x = x.to(tl.float32)
    return x


@triton.jit
def narrow(x, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """Float32 `x` rounded to nearest even; |x| ≤ 448 where dtype is float8."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where(x == x, rounded, 0x7FC0)
        narrowed = rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    elif INTERPRETED and dtype == tl.float8e4nv:
        bits = x.to(tl.uint32, bitcast=True)
        exponent = tl.maximum(((bits >> 23) & 0xFF).to(tl.int32) - 127, -6)
        step = ((exponent + 124) << 23).to(tl.float32, bitcast=True)
        steps = round_half_even(tl.abs(x) / step).to(tl.int32)
        code = ((exponent + 7) << 3) + steps - 8 + ((bits >> 31) << 7).to(tl.int32)
        code = tl.where(x == x, code, 0x7F)
        narrowed = code.to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    else:
        narrowed = x.to(dtype)
    return narrowed


@triton.jit
def round_half_even(x):
    """The nearest whole number of a float32 below 2²²."""
    return tl.where(x < 0, (x - 12582912.0) + 12582912.0, (x + 12582912.0) - 12582912.0)
