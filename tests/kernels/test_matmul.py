"""Products with weights in every form on Triton against the reference."""

import pytest
import torch
from kernel_bed import FLOATS, assert_within_budget, random_rows, same_bits

from firstlight.kernels import ops
from firstlight.kernels.matrix import Matrix, pack_int4, quantize_matrix, unpack_int4
from firstlight.kernels.reference.matmul import weights_of

FORMS = [
    ("float", None),
    ("int8", None),
    ("int8", 64),
    ("fp8", None),
    ("fp8", 128),
    ("int4", 32),
    ("int4", 64),
    ("int4", 128),
]


def matrix(form, group, outputs=40, inputs=256, dtype=torch.float32, experts=(), seed=5) -> Matrix:
    weight = random_rows(*experts, outputs, inputs, seed=seed)
    return quantize_matrix(weight.to(dtype) if form == "float" else weight, form, group)


def on(device, weight: Matrix) -> Matrix:
    parts = (weight.codes, weight.scales, weight.zeros)
    return Matrix(weight.form, *(None if p is None else p.to(device) for p in parts))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("form", "group"), FORMS, ids=str)
def test_a_product_is_as_exact_as_torch(form, group, dtype, device):
    weight = matrix(form, group, dtype=dtype)
    rows, bias = random_rows(3, 256, dtype=dtype), random_rows(40, seed=6)
    exact = rows.double() @ weights_of(weight, torch.float64).T + bias.double()
    # Torch in the same dtype: the weights and the result are rounded to it.
    eager = torch.nn.functional.linear(rows, weights_of(weight).to(dtype), bias.to(dtype))
    found = ops.matmul(rows.to(device), on(device, weight), bias=bias.to(device), kernels="gpu")
    assert found.dtype == dtype
    assert_within_budget(found.cpu(), eager, exact)


@pytest.mark.parametrize("inputs", [96, 576])
@pytest.mark.parametrize("form", ["float", "int8", "fp8"])
def test_inputs_need_not_be_whole_steps(form, inputs, device):
    weight = matrix(form, None, inputs=inputs)
    rows = random_rows(2, inputs)
    exact = rows.double() @ weights_of(weight, torch.float64).T
    found = ops.matmul(rows.to(device), on(device, weight), kernels="gpu").cpu()
    assert_within_budget(found, rows @ weights_of(weight).T, exact)


@pytest.mark.parametrize("group", [None, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rows_of_float8_are_scaled_back(group, dtype, device):
    weight = matrix("fp8", group)
    codes, scales = ops.quantize_rows(random_rows(5, 256), torch.float8_e4m3fn, kernels="reference")
    wide = codes.double() * scales.double()[:, None]
    exact = wide @ weights_of(weight, torch.float64).T
    eager = (wide.to(dtype) @ weights_of(weight).to(dtype).T).to(dtype)
    found = ops.matmul(
        codes.to(device),
        on(device, weight),
        row_scales=scales.to(device),
        dtype=dtype,
        kernels="gpu",
    )
    assert_within_budget(found.cpu(), eager, exact)


@pytest.mark.parametrize(("form", "group"), FORMS, ids=str)
def test_a_row_alone_has_the_bits_that_it_has_among_others(form, group, device):
    weight = on(device, matrix(form, group, outputs=33))
    rows = random_rows(70, 256).to(device)
    whole = ops.matmul(rows, weight, kernels="gpu")
    for row in (0, 37, 69):
        alone = ops.matmul(rows[row : row + 1].clone(), weight, kernels="gpu")
        assert same_bits(alone[0], whole[row])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(("form", "group"), [("float", None), ("int8", None), ("int4", 64)])
def test_what_is_not_finite_stays_in_its_row(form, group, bad, device):
    weight = on(device, matrix(form, group))
    rows = random_rows(6, 256).to(device)
    spoiled = rows.clone()
    spoiled[2, 17] = bad
    found = ops.matmul(spoiled, weight, kernels="gpu")
    others = [0, 1, 3, 4, 5]
    assert same_bits(found[others], ops.matmul(rows, weight, kernels="gpu")[others])
    assert not found[2].isfinite().any()


def test_codes_of_four_bits_come_back_from_their_bytes():
    codes = torch.randint(0, 16, (3, 5, 128), dtype=torch.uint8)
    assert torch.equal(unpack_int4(pack_int4(codes, 64), 64), codes)


@pytest.mark.parametrize(("form", "group"), FORMS[1:], ids=str)
def test_a_quantized_weight_is_within_half_a_step_of_what_it_was(form, group):
    weight = random_rows(8, 256)
    quantized = quantize_matrix(weight, form, group)
    error = (weights_of(quantized) - weight).abs().unflatten(-1, (-1, quantized.group))
    steps = {"int8": 0.5, "fp8": 16.0, "int4": 0.51 + 0.5}[form]  # int4: the zero is rounded too
    assert (error <= steps * quantized.scales[..., None] * 1.001).all()


def test_no_rows_give_no_rows(device):
    weight = on(device, matrix("int8", None))
    assert ops.matmul(torch.empty(0, 256, device=device), weight, kernels="gpu").shape == (0, 40)
