"""Numbers of a step in one run of bytes, so that all of them go to the device in one copy."""

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

Field: TypeAlias = tuple[str, torch.dtype, tuple[int, ...]]
"""Name, what its numbers are, shape."""
_ALIGNED = 16
"""Where a field begins: Triton launches one program for addresses that are multiples of this, and
another one for those that are not."""


def size_of(fields: Sequence[Field]) -> int:
    """Bytes that these take."""
    return sum(_bytes(field) for field in fields)


class Staging:
    """The run of bytes twice: on the host, where it is written, and on the device."""

    def __init__(self, device: torch.device, size: int) -> None:
        """On the host it stays where it is, so that a copy needs nobody to wait for it."""
        self.host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.there = torch.zeros(size, dtype=torch.uint8, device=device)

    def views(self, fields: Sequence[Field]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(on the host, on the device): fields by name, one behind the other from the start on."""
        return _views(self.host, fields), _views(self.there, fields)

    def send(self, size: int) -> None:
        """One copy of the first `size` bytes. Whoever writes again has waited for the device."""
        self.there[:size].copy_(self.host[:size], non_blocking=True)


def _views(memory: Tensor, fields: Sequence[Field]) -> dict[str, Tensor]:
    found, offset = {}, 0
    for field in fields:
        name, dtype, shape = field
        length = prod(shape) * dtype.itemsize
        found[name] = memory[offset : offset + length].view(dtype).view(shape)
        offset += _bytes(field)
    return found


def _bytes(field: Field) -> int:
    _, dtype, shape = field
    return -(-prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED
