"""What operations ask of their arguments, checked before anything is launched.

Each check raises a `ValueError` that names the argument, what it is and what was expected.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

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


def check_range(name: str, value: float, low: float, high: float) -> None:
    """A finite number within limits, ends included."""
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, expected {low} to {high}")


def check_places(name: str, places: Sequence[int], end: int) -> None:
    """Whole numbers from 0 to end − 1."""
    for place in places:
        if not 0 <= place < end:
            raise ValueError(f"{name} has {place}, expected 0 to {end - 1}")


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
