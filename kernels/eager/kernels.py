"""The operations in torch, wherever that runs, a row's bits its own (`attention`, `linear`)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from firstlight.kernels.eager.attention import PagedAttention, check_invariance
from firstlight.kernels.eager.linear import (
    PackedLinear,
    TiledLinear,
    can_pack,
    rows_are_independent,
)
from firstlight.kernels.pages import Heads, Span


class EagerKernels:
    """See `firstlight.kernels.sets.Kernels`. Checks what it relies on when it is made."""

    def __init__(self, heads: Heads) -> None:
        self._products = check_invariance(heads)
        self._packs: dict[tuple[int, int], bool] = {}
        """Of each shape of weight seen: whether its packed product passed the check."""
        self._forms: set[str] = set()

    @property
    def signature(self) -> str:
        """Complete once every weight has been placed."""
        forms = "+".join(sorted(self._forms))
        return f"eager linear={forms} attention={self._products.signature}"

    def linear(self, weight: Tensor, bias: Tensor | None) -> PackedLinear | TiledLinear:
        """x·Wᵀ + b, packed if that exists and keeps rows independent for this shape."""
        if not can_pack(weight):
            return self._tiled(weight, bias)
        outputs, inputs = weight.shape
        packed = PackedLinear(weight, bias)
        shape = (outputs, inputs)
        if shape not in self._packs:
            self._packs[shape] = rows_are_independent(packed, inputs, outputs)
        if not self._packs[shape]:
            return self._tiled(weight, bias)
        self._forms.add(PackedLinear.form)
        return packed

    def _tiled(self, weight: Tensor, bias: Tensor | None) -> TiledLinear:
        self._forms.add(TiledLinear.form)
        return TiledLinear(weight, bias)

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x · weight / √(mean(x²) + eps)."""
        return functional.rms_norm(rows, weight.shape, weight, eps)

    def rotate(self, rows: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """x·cos + (halves swapped)·sin."""
        count, heads, dim = rows.shape
        swapped = rows.view(count, heads, 2, dim // 2).flip(2).view(count, heads, dim)
        return torch.mul(rows, cosine).addcmul_(swapped, sine)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """SiLU(first half) · second half."""
        half = gate_up.shape[-1] // 2
        return functional.silu(gate_up[:, :half]).mul_(gate_up[:, half:])

    def attention(
        self, spans: Sequence[Span], tables: Sequence[Sequence[int]], heads: Heads, blocks: int
    ) -> PagedAttention:
        """One form for prefill, decode and verify; rows hold queries, keys and values."""
        return PagedAttention(spans, tables, heads, blocks, self._products, heads.row_heads)
