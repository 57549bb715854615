"""What tests of kernels build: budgets of error, random rows, rows that are spoiled."""

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def random_rows(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_within_budget(found: Tensor, eager: Tensor, exact: Tensor) -> None:
    """`found` is as near to the float64 result as torch in the same dtype is, within a factor.

    Two orders of the same sum differ about as much as each does from the exact one; a rounding of
    the result is in both. What is allowed beyond is one unit of the result's last place.
    """
    assert found.shape == exact.shape, (found.shape, exact.shape)
    assert exact.dtype == torch.float64
    unit = torch.finfo(eager.dtype).eps * exact.abs().amax()
    budget = 3 * (eager.double() - exact).abs().amax() + unit
    error = (found.double() - exact).abs().amax()
    assert error <= budget, f"error {error:.3e} is above {budget:.3e}"


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Equal to the bit, NaN included."""
    return left.dtype == right.dtype and torch.equal(
        left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8)
    )
