"""Normalization, gate and quantization of rows on Triton against the reference."""

import pytest
import torch
from kernel_bed import FLOATS, assert_within_budget, random_rows, same_bits

from firstlight.kernels import ops

WIDTHS = [64, 576, 2048]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_norm_is_as_exact_as_torch(dtype, width, device):
    rows, weight = random_rows(5, width, dtype=dtype), random_rows(width, seed=1, dtype=dtype)
    exact = ops.rms_norm(rows.double(), weight.double(), 1e-5, kernels="reference")
    eager = ops.rms_norm(rows, weight, 1e-5, kernels="reference")
    found = ops.rms_norm(rows.to(device), weight.to(device), 1e-5, kernels="gpu").cpu()
    assert found.dtype == dtype
    assert_within_budget(found, eager, exact)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_norm_with_residual_gives_the_sum_and_its_norm(dtype, device):
    rows, residual = random_rows(3, 576, dtype=dtype), random_rows(3, 576, seed=2, dtype=dtype)
    weight = random_rows(576, seed=1, dtype=dtype)
    eager, total = ops.add_rms_norm(rows, residual, weight, 1e-5, kernels="reference")
    found, found_total = ops.add_rms_norm(
        rows.to(device), residual.to(device), weight.to(device), 1e-5, kernels="gpu"
    )
    assert same_bits(found_total.cpu(), total)
    exact = ops.rms_norm(total.double(), weight.double(), 1e-5, kernels="reference")
    assert_within_budget(found.cpu(), eager, exact)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("width", [48, 1536])
def test_a_gate_is_as_exact_as_torch(dtype, width, device):
    gate_up = random_rows(4, 2 * width, dtype=dtype) * 4
    exact = ops.silu_mul(gate_up.double(), kernels="reference")
    eager = ops.silu_mul(gate_up, kernels="reference")
    assert_within_budget(ops.silu_mul(gate_up.to(device), kernels="gpu").cpu(), eager, exact)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("code", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_codes_and_scales_are_those_of_the_reference_to_the_bit(dtype, code, device):
    rows = random_rows(9, 80, dtype=dtype) * torch.logspace(-6, 4, 9)[:, None].to(dtype)
    rows[3] = 0
    codes, scales = ops.quantize_rows(rows, code, kernels="reference")
    found, found_scales = ops.quantize_rows(rows.to(device), code, kernels="gpu")
    assert same_bits(found.cpu(), codes)
    assert same_bits(found_scales.cpu(), scales)


def test_codes_are_finite_whatever_a_row_holds(device):
    rows = random_rows(4, 64)
    rows[0, 3], rows[1, 5], rows[2, 7] = torch.nan, torch.inf, -torch.inf
    for code in (torch.int8, torch.float8_e4m3fn):
        codes, scales = ops.quantize_rows(rows, code, kernels="reference")
        found, found_scales = ops.quantize_rows(rows.to(device), code, kernels="gpu")
        assert same_bits(found.cpu(), codes)
        assert same_bits(found_scales.cpu(), scales)
        assert codes.float().isfinite().all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_row_alone_has_the_bits_that_it_has_among_others(dtype, device):
    rows = random_rows(37, 64, dtype=dtype).to(device)
    weight = random_rows(64, seed=1, dtype=dtype).to(device)
    norms = ops.rms_norm(rows, weight, 1e-5, kernels="gpu")
    gates = ops.silu_mul(rows, kernels="gpu")
    for row in (0, 17, 36):
        alone = rows[row : row + 1].clone()
        assert same_bits(ops.rms_norm(alone, weight, 1e-5, kernels="gpu")[0], norms[row])
        assert same_bits(ops.silu_mul(alone, kernels="gpu")[0], gates[row])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_row(bad, device):
    rows, weight = random_rows(40, 64).to(device), random_rows(64, seed=1).to(device)
    spoiled = rows.clone()
    spoiled[11, 5] = bad
    others = [row for row in range(40) if row != 11]
    for run in (
        lambda x: ops.rms_norm(x, weight, 1e-5, kernels="gpu"),
        lambda x: ops.silu_mul(x, kernels="gpu"),
        lambda x: ops.add_rms_norm(x, x, weight, 1e-5, kernels="gpu")[0],
    ):
        assert same_bits(run(spoiled)[others], run(rows)[others])
        assert not run(spoiled)[11].isfinite().all()


def test_no_rows_give_no_rows(device):
    empty = torch.empty(0, 64, device=device)
    weight = torch.ones(64, device=device)
    assert ops.rms_norm(empty, weight, 1e-5, kernels="gpu").shape == (0, 64)
    assert ops.silu_mul(empty, kernels="gpu").shape == (0, 32)
    assert ops.quantize_rows(empty, torch.int8, kernels="gpu")[1].shape == (0,)
