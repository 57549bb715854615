"""Products of the C++ kernels, against float64 over the very weights that they hold."""

import numpy as np
import pytest
from cpp_kernels import cpp
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from firstlight.kernels.cpu import extension

pytestmark = cpp
FORMATS = ("q4", "q8", "bf16", "f32")
SHAPES = [(16, 32), (50, 576), (3, 64), (200, 1536), (1, 96)]


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def matrix(weight_format: str, values: np.ndarray):
    return extension.native().Matrix.from_floats(weight_format, values)


def product(weights, rows: np.ndarray) -> np.ndarray:
    return extension.native().matmul(extension.instruction_sets()[0], weights, rows)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 13])
def test_a_product_is_that_of_the_weights_it_holds(weight_format, shape, rows):
    weights, x = matrix(weight_format, normal(1, *shape)), normal(rows, rows, shape[1])
    held = weights.unpacked().astype(np.float64)
    if weight_format in ("q4", "q8"):
        # Half a step of a group's scale for each activation, and that as if all errors agreed.
        step = np.abs(x).reshape(rows, -1, 32).max(-1) / 127
        budget = (step / 2).repeat(32, 1) @ np.abs(held).T
    else:
        budget = 4 * shape[1] ** 0.5 * np.finfo(np.float32).eps * (np.abs(x) @ np.abs(held).T)
    found, exact = product(weights, x), x.astype(np.float64) @ held.T
    assert (np.abs(found - exact) <= budget + 1e-6 * np.abs(exact)).all()
    assert np.abs(found - exact).max() > 0 or np.array_equal(found, exact)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_row_has_the_same_bits_in_any_company(weight_format):
    weights, x = matrix(weight_format, normal(2, 70, 576)), normal(3, 300, 576)
    whole = product(weights, x)
    for first, end in [(0, 1), (7, 9), (5, 8), (100, 104), (3, 20), (250, 300), (1, 300)]:
        assert np.array_equal(product(weights, x[first:end]), whole[first:end])


@pytest.mark.parametrize(
    ("weight_format", "step"), [("q4", 1 / 15), ("q8", 1 / 127), ("bf16", 2**-7), ("f32", 0)]
)
def test_a_format_holds_values_as_finely_as_it_says(weight_format, step):
    values = np.random.default_rng(4).uniform(-1, 1, (33, 64)).astype(np.float32)
    assert np.abs(matrix(weight_format, values).unpacked() - values).max() <= step * 1.01


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_of_a_file_are_taken_without_loss(kind):
    number = GGMLQuantizationType[kind]
    rows = quantize(normal(5, 50, 96), number)
    taken = extension.native().Matrix.from_blocks(kind, rows, 96).unpacked()
    # float32 on both sides: a multiplication and an addition, rounded each or once.
    assert np.allclose(taken, dequantize(rows, number), rtol=0, atol=1e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weight_format", FORMATS)
def test_what_is_not_finite_spoils_its_own_row_only(weight_format, wrong):
    weights, x = matrix(weight_format, normal(6, 40, 64)), normal(7, 5, 64)
    clean = product(weights, x)
    x[2, 37] = wrong
    found = product(weights, x)
    assert not np.isfinite(found[2]).any()
    assert np.array_equal(found[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-33, 1e30])
def test_rows_of_tiny_and_of_huge_values_give_finite_products(size):
    for weight_format in FORMATS:
        weights = matrix(weight_format, normal(8, 20, 64))
        found = product(weights, normal(9, 3, 64) * np.float32(size))
        assert np.isfinite(found).all()
        assert (np.abs(found) <= 64 * 20 * size).all()


def test_rows_of_zeros_give_zeros():
    for weight_format in FORMATS:
        weights = matrix(weight_format, normal(8, 20, 64))
        assert not product(weights, np.zeros((3, 64), np.float32)).any()


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (lambda m: m.from_floats("q4", normal(1, 4, 40)), "40 inputs are not a multiple of 32"),
        (lambda m: m.from_floats("f32", normal(1, 4, 40)), "40 inputs are not a multiple of 16"),
        (lambda m: m.from_floats("bf16", normal(1, 4, 7)), "7 inputs are not a multiple of 16"),
        (lambda m: m.from_floats("q5", normal(1, 4, 32)), "'q5' is unknown"),
        (lambda m: m.from_floats("f32", normal(1, 4)), "not a matrix"),
        (lambda m: m.from_floats("f32", normal(1, 0, 32)), "without weights"),
        (lambda m: m.from_blocks("Q4_1", np.zeros((2, 19), np.uint8), 32), "do not hold 32"),
        (lambda m: m.from_blocks("Q6_K", np.zeros((2, 20), np.uint8), 32), "do not hold 32"),
    ],
)
def test_weights_that_do_not_fit_are_refused(call, wrong):
    with pytest.raises(ValueError, match=wrong):
        call(extension.native().Matrix)


def test_rows_that_do_not_fit_the_weights_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        product(matrix("q8", normal(1, 4, 32)), normal(2, 1, 64))
    with pytest.raises(ValueError, match="cannot run on this machine"):
        extension.native().matmul("abacus", matrix("q8", normal(1, 4, 32)), normal(2, 1, 32))
