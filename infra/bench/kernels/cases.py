"""Every operation at the shapes of a model: what it must move and compute, and how it is run.

A case can be built on a GPU, to be measured; on `meta`, to be compiled; and on a CPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from firstlight.infra.bench.kernels.shapes import Shape

Run = Callable[[], object]


@dataclass(frozen=True)
class Prepared:
    """A case with its tensors in place."""

    run: Run
    exact: Callable[[], tuple[Tensor, Tensor, Tensor]] | None = None
    """(found, torch in the same dtype, float64) of some rows; None: an exact copy, or ids, which
    tests compare to the bit."""
    torchs: Run | None = None
    """What torch has for the same."""


@dataclass(frozen=True)
class Case:
    """One operation in one variant at one shape."""

    operation: str
    variant: str
    model: str
    shape: str
    bytes: int
    """The least that must be read and written."""
    operations: int
    """Multiplications and additions in products of matrices."""
    prepare: Callable[[torch.device], Prepared]

    @property
    def name(self) -> str:
        """What a table calls it."""
        return f"{self.operation} {self.variant}".strip()


class Source:
    """Tensors for cases: random where there is memory, so that no kernel meets only zeros."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._random = None if device.type == "meta" else torch.Generator(device).manual_seed(1)

    def floats(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Normal numbers."""
        if self._random is None:
            return torch.empty(*shape, dtype=dtype, device=self.device)
        made = torch.randn(*shape, generator=self._random, device=self.device, dtype=torch.float32)
        return made.to(dtype)

    def codes(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Bytes of every value: of int8 and uint8 all, of float8 those without NaN."""
        if self._random is None:
            return torch.empty(*shape, dtype=dtype, device=self.device)
        made = torch.randint(
            0, 256, shape, generator=self._random, device=self.device, dtype=torch.uint8
        )
        if dtype == torch.float8_e4m3fn:
            made = made & 0xBF  # exponents below half: sums stay in range
        return made.view(dtype)

    def scales(self, *shape: int) -> Tensor:
        """Small positive numbers."""
        if self._random is None:
            return torch.empty(*shape, device=self.device)
        made = torch.rand(*shape, generator=self._random, device=self.device)
        return (made + 0.5) * 0.01


def cases(shape: Shape) -> Iterator[Case]:
    """All of them, in the order of a layer."""
    from firstlight.infra.bench.kernels import (
        cases_attention,
        cases_products,
        cases_rows,
        cases_sampling,
    )

    yield from cases_rows.cases(shape)
    yield from cases_attention.cases(shape)
    yield from cases_products.cases(shape)
    yield from cases_sampling.cases(shape)
