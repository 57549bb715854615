"""The gate of an MLP: what is right, in plain torch."""

import torch
from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """[n, 2 · width] → [n, width]: SiLU(first half) · second half, rounded once."""
    wide = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32))
    gate, up = wide.chunk(2, -1)
    return (functional.silu(gate) * up).to(gate_up.dtype)
