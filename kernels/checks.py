"""What operations ask of their arguments, checked before anything is launched.

Each check raises a `ValueError` that names the argument, what it is and what was expected.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from firstlight.kernels.pages import BLOCK_ROWS

CODES = (torch.int8, torch.float8_e4m3fn)
"""What quantized rows and pages are made of."""
DIM_MIN, DIM_MAX = 16, 256
"""Of a head."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""What rows of a step may be made of."""


def check_tensor(
    name: str,
    tensor: Tensor,
    shape: Sequence[int | str],
    dtypes: Sequence[torch.dtype],
    device: torch.device | None = None,
) -> None:
    """A contiguous tensor of one of these dtypes, on this device.

    A number in `shape` is a size, a word stands for any size of at least 1, and a word that ends in
    `…` for any size, 0 included.
    """
    fits = tensor.dim() == len(shape) and all(
        size == wanted if isinstance(wanted, int) else size > 0 or wanted.endswith("…")
        for size, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        words = ", ".join(str(wanted).removesuffix("…") for wanted in shape)
        raise ValueError(f"{name} is {list(tensor.shape)}, expected [{words}]")
    if tensor.dtype not in dtypes:
        expected = " or ".join(_word(dtype) for dtype in dtypes)
        raise ValueError(f"{name} is {_word(tensor.dtype)}, expected {expected}")
    if device is not None and tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, expected {device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} has strides {tensor.stride()}, expected it to be contiguous")


def check_pages(pages: Tensor, scales: Tensor | None, blocks: int, device: torch.device) -> None:
    """A pool of one layer, with scales if and only if it holds codes."""
    shape = (2, blocks, "kv_heads", BLOCK_ROWS, "dim")
    check_tensor("pages", pages, shape, (*FLOATS, *CODES, torch.float64), device)
    if pages.shape[4] % 2 or not DIM_MIN <= pages.shape[4] <= DIM_MAX:
        raise ValueError(f"pages have dim {pages.shape[4]}, expected even, {DIM_MIN} to {DIM_MAX}")
    if (scales is not None) != (pages.dtype in CODES):
        given = "no scales" if scales is None else "scales"
        raise ValueError(f"pages are {_word(pages.dtype)} with {given}, expected scales for codes")
    if scales is not None:
        check_tensor("scales", scales, pages.shape[:4], (torch.float32,), device)


def check_range(name: str, value: float, low: float, high: float) -> None:
    """A finite number within limits, ends included."""
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, expected {low} to {high}")


def check_blocks(name: str, blocks: Sequence[int], pool: Tensor) -> Tensor:
    """Ids of blocks of a pool [layers, 2, blocks, …], as int64 beside it."""
    check_tensor("pool", pool, ("layers", 2, *pool.shape[2:]), (pool.dtype,))
    for block in blocks:
        if not 0 <= block < pool.shape[2]:
            raise ValueError(f"{name} has {block}, expected 0 to {pool.shape[2] - 1}")
    return torch.tensor(list(blocks), dtype=torch.int64, device=pool.device)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
