"""Root-mean-square normalization: what is right, in plain torch."""

import torch
from torch import Tensor


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[n, width] → the same: x · weight / √(mean(x²) + eps), in float32 or wider, rounded once."""
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.to(wide.dtype)).to(rows.dtype)


def add_rms_norm(
    rows: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """(norm of the sum, the sum): the sum is rounded first, so that what is normed is what the next
    layer adds to."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    total = (rows.to(wide) + residual.to(wide)).to(rows.dtype)
    return rms_norm(total, weight, eps), total
