"""The set of operations that a model is made of, and the choice of who carries them out.

`reference` is plain torch and says what is right. `eager` is torch arranged so that a row's result
does not depend on the rows beside it; it runs anywhere. Whole decoders in C++ for one kind of CPU
are in `kernels.cpu`, and keep the same promise. An implementation asked for by name never falls
back to another one.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from torch import Tensor

from firstlight.kernels.eager.kernels import EagerKernels
from firstlight.kernels.pages import Heads, Span
from firstlight.kernels.reference.kernels import ReferenceKernels

Linear: TypeAlias = Callable[[Tensor], Tensor]
"""[rows, inputs] float32 → [rows, outputs] float32."""

Attention: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Attention of one step: (rows `[n, at least heads, head_dim]`, of which the first `heads` are
queries; the pool of a layer) → [n, heads · head_dim]."""


class Kernels(Protocol):
    """What every implementation offers. Rows are always the first dimension."""

    @property
    def signature(self) -> str:
        """Everything about this implementation that can change the bits of a result."""
        ...

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """x·Wᵀ + b for W [outputs, inputs]; the weight may be copied into another form."""
        ...

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Over the last dimension: x · weight / √(mean(x²) + eps)."""
        ...

    def rotate(self, rows: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Rotary embedding of halves: x·cos + (halves swapped)·sin, sine signed for that."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """SiLU(first half) · second half of the last dimension."""
        ...

    def attention(
        self, spans: Sequence[Span], tables: Sequence[Sequence[int]], heads: Heads, blocks: int
    ) -> Attention:
        """Causal attention over pages, planned once a step and called once a layer."""
        ...


def open_kernels(name: str, heads: Heads) -> Kernels:
    """The implementation called `name`, for a model with these heads.

    Raises:
        ValueError: no implementation has that name.

    """
    if name == "eager":
        return EagerKernels(heads)
    if name == "reference":
        return ReferenceKernels()
    raise ValueError(f"kernels {name!r} are unknown, expected eager or reference")
