"""Rows in 8 bits with a scale of their own: what is right, in plain torch."""

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = {torch.int8: 127.0, FP8: 448.0}
"""The code that the largest value of a row gets."""


def quantize_rows(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[…, width] → (codes of int8 or float8 […, width], float32 scales […]).

    A row's largest magnitude gets the largest code; a row of zeros has the scale 1. NaN counts as 0
    and an infinity as 65,504, so that codes are finite.
    """
    finite = rows.float().nan_to_num(0.0, 65504.0, -65504.0).clamp(-65504.0, 65504.0)
    most = finite.abs().amax(-1)
    scales = torch.where(most > 0, most / LARGEST[dtype], torch.ones_like(most))
    scales = torch.where(scales > 0, scales, torch.ones_like(most))
    codes = (finite / scales[..., None]).clamp(-LARGEST[dtype], LARGEST[dtype])
    return (codes.round() if dtype == torch.int8 else codes).to(dtype), scales
