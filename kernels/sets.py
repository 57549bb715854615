"""What a whole model runs on: the operations as a set, arranged for one kind of machine.

On a CPU in torch: `reference`, or `eager`, arranged so that a row's result does not depend on the
rows beside it. Whole decoders in C++ for one kind of CPU are in `kernels.cpu`, and keep the same
promise. On a GPU: the operations of `kernels.ops` in their form in Triton, and how a run of them is
captured (`kernels.gpu.kernels`). What is asked for by name never becomes something else.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TypeAlias

from torch import Tensor

from firstlight.kernels.eager.kernels import EagerKernels
from firstlight.kernels.pages import Heads, Span
from firstlight.kernels.reference.kernels import ReferenceKernels

if TYPE_CHECKING:
    from firstlight.kernels.gpu.kernels import GpuKernels

Linear: TypeAlias = Callable[[Tensor], Tensor]
"""[rows, inputs] float32 → [rows, outputs] float32."""

Attention: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Attention of one step: (rows `[n, at least heads, head_dim]`, of which the first `heads` are
queries; the pool of a layer) → [n, heads · head_dim]."""


class Kernels(Protocol):
    """What every implementation in torch offers. Rows are always the first dimension."""

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
    """The implementation on a CPU called `name`, for a model with these heads.

    Raises:
        ValueError: no implementation has that name.

    """
    if name == "eager":
        return EagerKernels(heads)
    if name == "reference":
        return ReferenceKernels()
    raise ValueError(f"kernels {name!r} are unknown, expected eager or reference")


def open_gpu(device: str, *, graphs: bool = True) -> "GpuKernels":
    """The kernels on the GPU called `device`: cuda, or cuda:1 for the second one.

    With `graphs` a step is captured once and replayed; else every operation is launched each time.

    Raises:
        ValueError: Triton is not installed, or there is no such GPU here; says what was found.

    """
    try:
        module = import_module("firstlight.kernels.gpu.kernels")
    except ImportError as error:
        raise ValueError(
            f"device is {device!r}, and kernels gpu are not installed: {error}"
        ) from error
    opened: GpuKernels = module.on_gpu(device, graphs=graphs)
    return opened
