"""The CPU's attention against the reference, and each row against itself in other company."""

from random import Random

import pytest
import torch

from firstlight.kernels.eager.attention import PagedAttention, Products, check_invariance
from firstlight.kernels.pages import BLOCK_ROWS, Heads, Span
from firstlight.kernels.reference.kernels import ReferenceKernels

SHAPES = [Heads(9, 3, 64), Heads(4, 4, 32), Heads(8, 1, 64), Heads(14, 2, 64)]


def case(heads: Heads, seed: int):
    """Random spans over a random pool: rows (queries, keys, values), pages, spans, tables."""
    random, torch_random = Random(seed), torch.Generator().manual_seed(seed)
    blocks = 80
    pages = torch.randn(
        2, blocks, heads.kv_heads, BLOCK_ROWS, heads.head_dim, generator=torch_random
    )
    spans, tables, first = [], [], 0
    for _ in range(random.randint(1, 7)):
        rows = random.choice((1, 1, 2, 5, 9, 33, 70))
        context = rows + random.choice((0, 1, 15, 90, 127, 128, 300, 700))
        spans.append(Span(first, rows, context))
        tables.append([random.randrange(blocks) for _ in range(-(-context // BLOCK_ROWS))])
        first += rows
    width = heads.heads + 2 * heads.kv_heads
    return torch.randn(first, width, heads.head_dim, generator=torch_random), pages, spans, tables


def attend(heads, products, rows, pages, spans, tables):
    plan = PagedAttention(spans, tables, heads, pages.shape[1], products, rows.shape[1])
    return plan(rows, pages)


@pytest.mark.parametrize("heads", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_it_agrees_with_the_reference(heads, seed):
    rows, pages, spans, tables = case(heads, seed)
    found = attend(heads, Products((2, 8, 32), True), rows, pages, spans, tables)
    exact = ReferenceKernels().attention(spans, tables, heads, 80)(rows.double(), pages.double())
    eager = ReferenceKernels().attention(spans, tables, heads, 80)(rows, pages)
    # As accurate as the eager float32 form is, up to the spread between two orders of summation.
    budget = 4 * (eager - exact).abs().max() + torch.finfo(torch.float32).eps
    assert (found - exact).abs().max() <= budget


@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_a_row_alone_has_the_bits_that_it_has_in_its_span(heads):
    products = check_invariance(heads)
    rows, pages, spans, tables = case(heads, 11)
    whole = attend(heads, products, rows, pages, spans, tables)
    for span, table in zip(spans, tables, strict=True):
        for index in {0, span.rows // 2, span.rows - 1}:
            row = span.first_row + index
            alone = [Span(0, 1, span.first_position + index + 1)]
            found = attend(heads, products, rows[row : row + 1], pages, alone, [table])
            assert torch.equal(found[0], whole[row])


def test_one_product_at_a_time_is_invariant_too():
    heads = SHAPES[0]
    rows, pages, spans, tables = case(heads, 12)
    products = Products((8,), False)
    whole = attend(heads, products, rows, pages, spans, tables)
    first = attend(
        heads, products, rows[:1], pages, [Span(0, 1, spans[0].first_position + 1)], tables[:1]
    )
    assert torch.equal(first[0], whole[0])


def test_a_long_context_is_cut_into_calls_without_changing_a_bit(monkeypatch):
    heads = SHAPES[0]
    rows, pages, spans, tables = case(heads, 13)
    products = Products((2, 8, 32), True)
    whole = attend(heads, products, rows, pages, spans, tables)
    monkeypatch.setattr("firstlight.kernels.eager.attention._SCRATCH_FLOATS_MAX", 1)
    assert torch.equal(attend(heads, products, rows, pages, spans, tables), whole)


def test_what_stale_blocks_hold_does_not_matter():
    heads = SHAPES[0]
    rows, pages, _, _ = case(heads, 14)
    products, spans, tables = Products((2, 8, 32), True), [Span(0, 3, 20)], [[5, 6]]
    before = attend(heads, products, rows[:3], pages, spans, tables)
    pages[:, 6, :, 4:] = 1e30
    pages[:, 0] = -1e30
    assert torch.equal(attend(heads, products, rows[:3], pages, spans, tables), before)


@pytest.mark.parametrize(
    ("spans", "tables", "wrong"),
    [
        ([Span(1, 1, 1)], [[0]], "expected to start at row 0"),
        ([Span(0, 2, 1)], [[0]], "span 0"),
        ([Span(0, 1, 17)], [[0]], "needs 2 blocks"),
        ([Span(0, 1, 1)], [[80]], "outside of 0…79"),
        ([Span(0, 1, 1)], [], "1 spans but 0 block tables"),
    ],
)
def test_spans_that_contradict_their_tables_are_refused(spans, tables, wrong):
    heads = SHAPES[0]
    with pytest.raises(ValueError, match=wrong):
        PagedAttention(spans, tables, heads, 80, Products((2,), True), 15)
