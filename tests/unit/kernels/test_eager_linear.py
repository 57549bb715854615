"""Products of the CPU: right, and every row's bits independent of the other rows."""

import pytest
import torch

from firstlight.kernels.eager.kernels import EagerKernels
from firstlight.kernels.eager.linear import (
    PackedLinear,
    TiledLinear,
    can_pack,
    rows_are_independent,
)
from firstlight.kernels.pages import Heads
from firstlight.kernels.sets import open_kernels

HEIGHTS = (1, 2, 3, 5, 7, 11, 16, 17, 40, 64, 200, 512)


def made(outputs: int, inputs: int):
    random = torch.Generator().manual_seed(7)
    draw = torch.randn(outputs + 512 + 1, inputs, generator=random)
    return draw[:outputs], draw[outputs : outputs + 512], torch.linspace(-1, 1, outputs)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", [PackedLinear, TiledLinear])
def test_rows_have_the_same_bits_at_every_height(form, threads):
    weight, rows, bias = made(192, 576)
    if form is PackedLinear and not can_pack(weight):
        pytest.skip("this torch has no packed product")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        linear = form(weight, bias)
        whole = linear(rows)
        assert all(torch.equal(linear(rows[:height]), whole[:height]) for height in HEIGHTS)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("form", [PackedLinear, TiledLinear])
def test_the_product_is_that_of_double_precision_within_the_rounding_of_sums(form):
    weight, rows, bias = made(192, 576)
    if form is PackedLinear and not can_pack(weight):
        pytest.skip("this torch has no packed product")
    exact = rows.double() @ weight.double().T + bias.double()
    # |error| ≤ n·ε·Σ|x·w| for a sum of n products (Higham, Accuracy and Stability, 3.5).
    bound = (
        577 * torch.finfo(torch.float32).eps * (rows.abs().double() @ weight.abs().double().T + 1)
    )
    assert ((form(weight, bias)(rows) - exact).abs() <= bound).all()


def test_more_rows_than_were_checked_are_cut():
    weight, rows, _ = made(64, 64)
    linear = EagerKernels(Heads(3, 1, 16)).linear(weight, None)
    many = torch.cat((rows, rows[:100]))
    assert torch.equal(linear(many)[512:], linear(rows)[:100])


def test_a_product_that_depends_on_the_height_is_found_out():
    class Uneven(PackedLinear):
        def __call__(self, rows):
            return super().__call__(rows) * (1 + 1e-6 * (rows.shape[0] == 3))

    weight, _, _ = made(64, 64)
    if not can_pack(weight):
        pytest.skip("this torch has no packed product")
    assert not rows_are_independent(Uneven(weight, None), 64, 64)


def test_bfloat16_weights_give_float32_rows_that_are_independent():
    weight, rows, _ = made(64, 64)
    linear = EagerKernels(Heads(3, 1, 16)).linear(weight.bfloat16(), None)
    whole = linear(rows)
    assert whole.dtype == torch.float32
    assert torch.equal(linear(rows[:3]), whole[:3])


def test_kernels_that_do_not_exist_are_not_replaced_by_others():
    with pytest.raises(ValueError, match="'gpu' are unknown"):
        open_kernels("gpu", Heads(3, 1, 16))


@pytest.mark.parametrize("name", ["rms_norm", "rotate", "silu_mul"])
def test_small_operations_agree_with_the_reference(name):
    random = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(*shape, generator=random)  # noqa: E731
    arguments = {
        "rms_norm": (draw(7, 576), draw(576), 1e-5),
        "rotate": (draw(7, 15, 64), draw(7, 15, 64), draw(7, 15, 64)),
        "silu_mul": (draw(7, 3072),),
    }[name]
    eager = getattr(open_kernels("eager", Heads(9, 3, 64)), name)(*arguments)
    reference = getattr(open_kernels("reference", Heads(9, 3, 64)), name)(*arguments)
    # A handful of roundings a value.
    torch.testing.assert_close(eager, reference, rtol=8 * torch.finfo(torch.float32).eps, atol=1e-6)
