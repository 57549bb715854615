"""Attention over pages: what is right, in plain torch, one sequence after another."""

import torch
from torch import Tensor

from firstlight.kernels.pages import BLOCK_ROWS
from firstlight.kernels.plan import AttentionPlan
from firstlight.kernels.reference.rotary import read_pages


def attend_prefill(
    queries: Tensor, pages: Tensor, plan: AttentionPlan, scales: Tensor | None
) -> Tensor:
    """[n, heads, dim] → the same: softmax over all visible keys at once; zeros in no span."""
    out = torch.zeros_like(queries)
    for (first, rows, context), table in zip(plan.spans.tolist(), plan.tables, strict=True):
        if rows:
            own = slice(first, first + rows)
            out[own] = _one(queries[own], pages, scales, plan, table, context)
    return out


def visible(plan: AttentionPlan, first_position: int, context: int) -> Tensor:
    """bool [rows, context]: which positions each of the rows sees."""
    row = torch.arange(first_position, context)[:, None]
    key = torch.arange(context)
    seen = key <= row
    if plan.window:
        seen &= (key > row - plan.window) | (key < plan.sinks)
    return seen


def _one(
    queries: Tensor,
    pages: Tensor,
    scales: Tensor | None,
    plan: AttentionPlan,
    table: Tensor,
    context: int,
) -> Tensor:
    rows, heads, dim = queries.shape
    used = table[: -(-context // BLOCK_ROWS)].long().clamp(min=0)
    held = read_pages(pages[:, used], None if scales is None else scales[:, used])
    # [2, blocks, kv_heads, 16, dim] → [2, kv_heads, context, dim]
    keys, values = (
        held.transpose(1, 2)
        .flatten(2, 3)[:, :, :context]
        .repeat_interleave(heads // pages.shape[2], dim=1)
    )
    seen = visible(plan, context - rows, context).to(pages.device)
    ever = seen.any(0)[:, None]
    wide = queries.to(keys.dtype).transpose(0, 1)
    scores = wide @ keys.where(ever, 0).transpose(1, 2) * dim**-0.5
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    joined: Tensor = weights @ values.where(ever, 0)
    return joined.transpose(0, 1).to(queries.dtype)
