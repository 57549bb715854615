"""What stands between two attentions: a gated product, or a mixture of experts that are such.

A mixture runs each expert once, over the rows that go to it. That an expert's product gives a row
the same bits beside any others, and that a row adds its experts up in the order of its own
preference, keeps a mixture as independent of the batch as the products are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firstlight.kernels.reference.experts import route
from firstlight.kernels.sets import Kernels, Linear


@dataclass(frozen=True)
class Gated:
    """down(SiLU(gate(x)) · up(x))."""

    gate_up: Linear
    down: Linear
    kernels: Kernels

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, hidden] → the same."""
        return self.down(self.kernels.silu_mul(self.gate_up(rows)))


@dataclass(frozen=True)
class Mixture:
    """The weighted sum of the experts that a router prefers, row by row."""

    router: Linear
    experts: Sequence[Callable[[Tensor], Tensor]]
    chosen: int
    renormalize: bool

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, hidden] → the same."""
        routes = route(self.router(rows), self.chosen, self.renormalize)
        of_pair = routes.experts.flatten()
        pairs = torch.empty(of_pair.shape[0], rows.shape[1])
        order = torch.argsort(of_pair, stable=True)
        counts = torch.bincount(of_pair, minlength=len(self.experts)).tolist()
        for expert, own in enumerate(torch.split(order, counts)):
            if len(own):
                pairs[own] = self.experts[expert](rows[own // self.chosen])
        parts = pairs.view(-1, self.chosen, rows.shape[1])
        total = parts[:, 0] * routes.weights[:, :1]
        for choice in range(1, self.chosen):
            total += parts[:, choice] * routes.weights[:, choice, None]
        return total
