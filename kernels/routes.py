"""Where a router sends the rows of a step."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Routes:
    """Which experts each row goes to, the best first, and what their results count."""

    experts: Tensor
    """int32 [n, chosen]."""
    weights: Tensor
    """float32 [n, chosen]."""
