"""The operations in plain torch: they define what is right, however slowly.

The order of sums inside a matrix product is torch's own here, so bits may depend on the batch; only
the values count. Other implementations are tested against this one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from firstlight.kernels.pages import BLOCK_ROWS, Heads, Span, check_spans


class ReferenceKernels:
    """See `firstlight.kernels.sets.Kernels`."""

    signature = "reference"

    def linear(self, weight: Tensor, bias: Tensor | None) -> "ReferenceLinear":
        """x·Wᵀ + b, in float32 whatever the weight is stored as."""
        return ReferenceLinear(weight.float(), None if bias is None else bias.float())

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x · weight / √(mean(x²) + eps)."""
        return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps) * weight

    def rotate(self, rows: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """x·cos + (halves swapped)·sin."""
        first, second = rows.chunk(2, -1)
        return rows * cosine + torch.cat((second, first), -1) * sine

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """SiLU(first half) · second half."""
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate) * up

    def attention(
        self, spans: Sequence[Span], tables: Sequence[Sequence[int]], heads: Heads, blocks: int
    ) -> "ReferenceAttention":
        """Softmax over all visible keys at once, one sequence after another."""
        check_spans(spans, tables, blocks)
        return ReferenceAttention(spans, tables, heads)


class ReferenceLinear:
    """x·Wᵀ + b."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, inputs] → [rows, outputs]."""
        return functional.linear(rows, self._weight, self._bias)


class ReferenceAttention:
    """Attention of one step, sequence by sequence."""

    def __init__(
        self, spans: Sequence[Span], tables: Sequence[Sequence[int]], heads: Heads
    ) -> None:
        self._spans = spans
        self._tables = [torch.tensor(table, dtype=torch.int64) for table in tables]
        self._heads = heads

    def __call__(self, rows: Tensor, pages: Tensor) -> Tensor:
        """(rows [n, ≥ heads, head_dim], pool of a layer) → [n, heads · head_dim]."""
        return torch.cat(
            [
                self._one(rows, pages, span, table)
                for span, table in zip(self._spans, self._tables, strict=True)
            ]
        )

    def _one(self, rows: Tensor, pages: Tensor, span: Span, table: Tensor) -> Tensor:
        heads = self._heads
        used = table[: -(-span.context // BLOCK_ROWS)]
        # [2, blocks, kv_heads, 16, head_dim] → [2, kv_heads, context, head_dim]
        seen = pages[:, used].transpose(1, 2).flatten(2, 3)[:, :, : span.context]
        keys, values = seen.repeat_interleave(heads.group, dim=1)
        query = rows[span.first_row : span.first_row + span.rows, : heads.heads].transpose(0, 1)
        scores = query @ keys.transpose(1, 2)
        if heads.sinks:
            distant = rows[span.first_row : span.first_row + span.rows, -heads.heads :]
            first = keys[:, : heads.sinks].transpose(1, 2)
            scores[..., : heads.sinks] = distant.transpose(0, 1) @ first
        scores = scores * heads.head_dim**-0.5
        last = torch.arange(span.first_position, span.context)
        position = torch.arange(span.context)
        hidden = position > last[:, None]
        if heads.window:
            hidden |= (position <= last[:, None] - heads.window) & (position >= heads.sinks)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        joined: Tensor = weights @ values
        return joined.transpose(0, 1).flatten(1)
