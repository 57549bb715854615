"""Rotary embedding of queries and keys, and where keys and values go: what is right."""

import torch
from torch import Tensor

from firstlight.kernels.pages import BLOCK_ROWS
from firstlight.kernels.plan import AttentionPlan
from firstlight.kernels.reference.quantize import LARGEST, quantize_rows

FINITE_MAX = 65504.0
"""What an infinity becomes in the pool: a weight of 0 in attention does not undo it."""


def rotate_and_write(
    rows: Tensor,
    cosines: Tensor,
    sines: Tensor,
    plan: AttentionPlan,
    pages: Tensor,
    scales: Tensor | None,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    """Rotated queries [n, heads, dim]; keys and values go into `pages` at the plan's slots."""
    kv_heads, dim = pages.shape[2], pages.shape[4]
    heads = rows.shape[1] - 2 * kv_heads
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    turned, values = wide[:, : heads + kv_heads], wide[:, heads + kv_heads :]
    if norms is not None:
        turned = turned * torch.rsqrt(turned.square().mean(-1, keepdim=True) + eps)
        weights = [norms[0].expand(heads, dim), norms[1].expand(kv_heads, dim)]
        turned = turned * torch.cat(weights).to(wide.dtype)
    cosine, sine = (table[plan.positions][:, None].to(wide) for table in (cosines, sines))
    first, second = turned.chunk(2, -1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
    slots, written = plan.slots, plan.slots >= 0
    block, offset = slots[written] // BLOCK_ROWS, slots[written] % BLOCK_ROWS
    for side, fresh in enumerate((turned[:, heads:], values)):
        fresh = fresh[written].nan_to_num(0.0, FINITE_MAX, -FINITE_MAX)
        fresh = fresh.clamp(-FINITE_MAX, FINITE_MAX)
        if scales is None:
            pages[side, block, :, offset] = fresh.to(pages.dtype)
        else:
            codes, own = quantize_rows(fresh, pages.dtype)
            pages[side, block, :, offset] = codes
            scales[side, block, :, offset] = own
    return turned[:, :heads].to(rows.dtype).contiguous()


def read_pages(pages: Tensor, scales: Tensor | None) -> Tensor:
    """The numbers that a pool stands for, in float32 or wider."""
    if scales is None:
        return pages.to(torch.promote_types(pages.dtype, torch.float32))
    assert pages.dtype in LARGEST
    return pages.float() * scales[..., None]
