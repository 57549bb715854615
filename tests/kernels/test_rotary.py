"""Rotary embedding and the write of keys and values on Triton against the reference."""

import pytest
import torch
from kernel_bed import FLOATS, assert_within_budget, random_rows, same_bits

from firstlight.kernels import ops
from firstlight.kernels.pages import BLOCK_ROWS, Heads, Span
from firstlight.kernels.plan import plan_attention

HEADS = Heads(4, 2, 32)
SPANS = [Span(0, 3, 20), Span(3, 1, 1), Span(4, 2, 33)]
TABLES = [[5, 2], [0], [1, 6, 3]]
BLOCKS = 8


def tables(dim: int):
    angles = torch.arange(40.0)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    return angles.cos(), angles.sin()


def run(
    device, *, kernels="gpu", heads=HEADS, dtype=torch.float32, code=None, normed=False, to=None
):
    """(queries, pages, scales) after one call on a pool of threes; `to` replaces the rows."""
    plan = plan_attention(SPANS, TABLES, BLOCKS, device=device)
    width = heads.heads + 2 * heads.kv_heads
    rows = random_rows(plan.rows, width, heads.head_dim, dtype=dtype) if to is None else to
    page = code or rows.dtype
    pages = torch.full((2, BLOCKS, heads.kv_heads, BLOCK_ROWS, heads.head_dim), 3.0).to(page)
    scales = None if code is None else torch.full(pages.shape[:4], 7.0)
    cosines, sines = tables(heads.head_dim)
    norms = None
    if normed:
        norms = tuple(random_rows(heads.head_dim, seed=s).to(device) for s in (3, 4))
    pages, scales = pages.to(device), None if scales is None else scales.to(device)
    queries = ops.rotate_and_write(
        rows.to(device),
        cosines.to(device),
        sines.to(device),
        plan,
        pages,
        scales=scales,
        norms=norms,
        eps=1e-6,
        kernels=kernels,
    )
    return queries.cpu(), pages.cpu(), None if scales is None else scales.cpu()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("heads", [HEADS, Heads(9, 3, 64), Heads(7, 1, 48)], ids=str)
def test_queries_keys_and_values_are_as_exact_as_torch(dtype, normed, heads, device):
    found = run(device, heads=heads, dtype=dtype, normed=normed)
    eager = run("cpu", heads=heads, dtype=dtype, normed=normed, kernels="reference")
    width = heads.heads + 2 * heads.kv_heads
    wide = random_rows(6, width, heads.head_dim, dtype=dtype).double()
    exact = run("cpu", heads=heads, normed=normed, kernels="reference", to=wide)
    for ours, theirs, right in zip(found[:2], eager[:2], exact[:2], strict=True):
        assert_within_budget(ours, theirs, right)


@pytest.mark.parametrize("code", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_codes_are_those_of_the_reference_but_where_a_tie_fell_otherwise(code, device):
    _, pages, scales = run(device, code=code)
    _, expected, expected_scales = run("cpu", code=code, kernels="reference")
    torch.testing.assert_close(scales, expected_scales, rtol=1e-6, atol=0)
    found, wanted = (p.float() * s[..., None] for p, s in ((pages, scales), (expected, scales)))
    step = scales[..., None] * (1.0 if code == torch.int8 else 32.0)
    assert ((found - wanted).abs() <= step).all()
    assert (pages.float() != expected.float()).float().mean() < 0.001


def test_only_the_slots_of_the_rows_are_written(device):
    _, pages, _ = run(device)
    changed = (pages != 3.0).any(-1).all(0).all(1).nonzero().tolist()
    expected = []
    for span, table in zip(SPANS, TABLES, strict=True):
        for position in range(span.first_position, span.context):
            expected.append([table[position // BLOCK_ROWS], position % BLOCK_ROWS])
    assert sorted(changed) == sorted(expected)


def test_what_is_not_finite_goes_into_the_pool_as_a_number(device):
    rows = random_rows(6, 8, 32)
    rows[1, 5, 3], rows[2, 7, 3], rows[4, 6, 3] = torch.nan, torch.inf, -torch.inf
    queries, pages, _ = run(device, to=rows)
    expected_queries, expected, _ = run("cpu", to=rows, kernels="reference")
    assert pages.isfinite().all()
    assert queries.isfinite().all()
    torch.testing.assert_close(pages, expected)
    torch.testing.assert_close(queries, expected_queries)


def test_a_row_has_the_same_bits_whatever_the_others_are(device):
    rows = random_rows(6, 8, 32)
    others = random_rows(6, 8, 32, seed=9)
    others[4] = rows[4]
    queries, pages, _ = run(device, to=rows)
    queries_too, pages_too, _ = run(device, to=others)
    assert same_bits(queries[4], queries_too[4])
    block, offset = TABLES[2][31 // 16], 31 % 16
    assert same_bits(pages[:, block, :, offset], pages_too[:, block, :, offset])
