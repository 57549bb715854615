"""Products with weights in any form: what is right, in plain torch."""

import torch
from torch import Tensor
from torch.nn import functional

from firstlight.kernels.matrix import Matrix, unpack_int4


def weights_of(weight: Matrix, dtype: torch.dtype = torch.float32) -> Tensor:
    """The numbers that a matrix stands for, […, outputs, inputs]."""
    if weight.scales is None:
        return weight.codes.to(dtype)
    codes = weight.codes
    if weight.form == "int4":
        codes = unpack_int4(codes, weight.group)
    values = codes.to(dtype).reshape(*codes.shape[:-1], -1, weight.group)
    if weight.zeros is not None:
        values = values - weight.zeros[..., None].to(dtype)
    scaled: Tensor = values * weight.scales[..., None].to(dtype)
    return scaled.flatten(-2)


def matmul(
    rows: Tensor,
    weight: Matrix,
    bias: Tensor | None,
    row_scales: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """[n, inputs] → [n, outputs] in float32 or wider, rounded once to `dtype`."""
    wide = torch.promote_types(dtype, torch.float32)
    values = rows.to(wide)
    if row_scales is not None:
        values = values * row_scales[:, None].to(wide)
    given = None if bias is None else bias.to(wide)
    return functional.linear(values, weights_of(weight, wide), given).to(dtype)
