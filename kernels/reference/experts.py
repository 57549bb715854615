"""A mixture of experts: what is right, in plain torch."""

import torch
from torch import Tensor
from torch.nn import functional

from firstlight.kernels.matrix import Matrix
from firstlight.kernels.reference.matmul import weights_of
from firstlight.kernels.routes import Routes


def route(logits: Tensor, chosen: int, renormalize: bool) -> Routes:
    """Softmax over all experts, then the `chosen` largest, the lowest expert first of equals.

    With `renormalize` their weights sum to 1. A logit of NaN is never preferred, and makes all
    weights of its row NaN.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    low = torch.finfo(torch.float32).min
    order = wide.nan_to_num(low, torch.inf, -torch.inf).clamp(min=low)
    experts = torch.argsort(order, dim=-1, descending=True, stable=True)[:, :chosen]
    weights = wide.softmax(-1).gather(-1, experts)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    kept = weights if weights.dtype == torch.float64 else weights.float()
    return Routes(experts.to(torch.int32), kept)


def expert_matmul(rows: Tensor, weight: Matrix, routes: Routes, apart: bool) -> Tensor:
    """[n · chosen, outputs]: pair (row, choice) through its expert's matrix.

    `rows` are [n, inputs], or with `apart` one for each pair [n · chosen, inputs].
    """
    wide = torch.promote_types(rows.dtype, torch.float32)
    weights = weights_of(weight, wide)
    chosen = routes.experts.shape[1]
    pairs = rows if apart else rows.repeat_interleave(chosen, 0)
    out = torch.empty(pairs.shape[0], weight.outputs, dtype=rows.dtype, device=rows.device)
    for pair, expert in enumerate(routes.experts.flatten().tolist()):
        out[pair] = functional.linear(pairs[pair].to(wide), weights[expert]).to(rows.dtype)
    return out


def combine_experts(pairs: Tensor, routes: Routes) -> Tensor:
    """[n · chosen, width] → [n, width]: the weighted sum of a row's pairs, the best first."""
    wide = torch.promote_types(pairs.dtype, torch.float32)
    parts = pairs.view(*routes.weights.shape, -1).to(wide) * routes.weights[..., None].to(wide)
    return parts.sum(1).to(pairs.dtype)
