"""Attention of few rows a sequence: the same definition as for many."""

from torch import Tensor

from firstlight.kernels.plan import AttentionPlan
from firstlight.kernels.reference.prefill import attend_prefill


def attend_decode(
    queries: Tensor, pages: Tensor, plan: AttentionPlan, scales: Tensor | None
) -> Tensor:
    """What is right does not depend on how many rows a sequence brings."""
    return attend_prefill(queries, pages, plan, scales)
