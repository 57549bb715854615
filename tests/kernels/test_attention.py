"""Attention over pages on Triton against the reference, and each row against itself."""

from dataclasses import replace

import pytest
import torch
from attention_bed import Case, case
from kernel_bed import FLOATS, assert_within_budget, same_bits

from firstlight.kernels import ops
from firstlight.kernels.pages import Heads, Span

GROUPED = [Heads(4, 4, 32), Heads(8, 2, 64), Heads(9, 3, 64), Heads(7, 1, 48)]
RAGGED = [(5, 5), (33, 90), (1, 17), (70, 131)]
VERIFY = [(1, 1), (8, 8), (3, 300), (2, 257), (5, 517), (1, 256)]


def exact_and_eager(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64, and in torch with the numbers as they are given."""
    plan = replace(
        case.plan, **{name: getattr(case.plan, name).cpu() for name in ("tables", "spans")}
    )
    queries, pages = case.queries.cpu(), case.pages.cpu()
    scales = None if case.scales is None else case.scales.cpu()
    eager = ops.attend_prefill(queries, pages, plan, scales=scales, kernels="reference")
    if scales is not None:
        pages, scales = pages.double() * scales.double()[..., None], None
    exact = ops.attend_prefill(
        queries.double(), pages.double(), plan, scales=scales, kernels="reference"
    )
    return exact, eager


@pytest.mark.parametrize("operation", [ops.attend_prefill, ops.attend_decode])
@pytest.mark.parametrize("heads", GROUPED, ids=str)
def test_it_is_as_exact_as_torch_for_heads_in_groups(operation, heads, device):
    shapes = RAGGED if operation is ops.attend_prefill else VERIFY
    given = case(shapes, heads, device)
    exact, eager = exact_and_eager(given)
    assert_within_budget(given.run(operation).cpu(), eager, exact)


@pytest.mark.parametrize("operation", [ops.attend_prefill, ops.attend_decode])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("code", [None, torch.int8, torch.float8_e4m3fn], ids=str)
def test_it_is_as_exact_as_torch_for_every_dtype(operation, dtype, code, device):
    given = case([(3, 40), (8, 75)], Heads(4, 2, 32), device, dtype=dtype, code=code)
    exact, eager = exact_and_eager(given)
    assert_within_budget(given.run(operation).cpu(), eager, exact)


@pytest.mark.parametrize("operation", [ops.attend_prefill, ops.attend_decode])
@pytest.mark.parametrize(("window", "sinks"), [(1, 0), (20, 0), (64, 4), (70, 17), (300, 65)])
def test_a_window_hides_what_it_should_and_sinks_stay_in_sight(operation, window, sinks, device):
    given = case(
        [(8, 8), (5, 331), (2, 600), (8, 139)],
        Heads(2, 1, 32),
        device,
        window=window,
        sinks=sinks,
    )
    exact, eager = exact_and_eager(given)
    assert_within_budget(given.run(operation).cpu(), eager, exact)


@pytest.mark.parametrize("rows", range(1, 9))
def test_verify_takes_one_to_eight_rows(rows, device):
    given = case([(rows, 20 + rows), (rows, 300)], Heads(4, 2, 16), device)
    exact, eager = exact_and_eager(given)
    assert_within_budget(given.run(ops.attend_decode).cpu(), eager, exact)


@pytest.mark.parametrize("window", [0, 30])
def test_a_decoded_row_alone_has_the_bits_that_it_has_in_any_step(window, device):
    given = case(VERIFY, Heads(6, 2, 64), device, window=window, sinks=window // 6)
    whole = given.run(ops.attend_decode)
    for span, (rows, _) in enumerate(VERIFY):
        for row in {0, rows // 2, rows - 1}:
            place = given.spans[span].first_row + row
            assert same_bits(given.alone(ops.attend_decode, span, row), whole[place])


def test_a_prompt_in_spans_of_eight_has_the_bits_of_rows_that_were_decoded(device):
    given = case([(20, 270)], Heads(4, 2, 32), device)
    (table,) = given.tables
    parts = [Span(0, 8, 258), Span(8, 8, 266), Span(16, 4, 270)]
    whole = given.run(ops.attend_decode, plan=given.plan_of(parts, [table] * 3))
    for row in (0, 7, 8, 19):
        assert same_bits(given.alone(ops.attend_decode, 0, row), whole[row])


@pytest.mark.parametrize("window", [0, 30])
def test_a_prefilled_row_alone_has_the_bits_that_it_has_in_any_step(window, device):
    given = case(RAGGED, Heads(6, 2, 64), device, window=window, sinks=window // 6)
    whole = given.run(ops.attend_prefill)
    for span, (rows, _) in enumerate(RAGGED):
        for row in {0, rows // 2, rows - 1}:
            place = given.spans[span].first_row + row
            assert same_bits(given.alone(ops.attend_prefill, span, row), whole[place])


@pytest.mark.parametrize("operation", [ops.attend_prefill, ops.attend_decode])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_query_that_is_not_finite_spoils_its_own_row_only(operation, bad, device):
    given = case([(8, 40), (3, 20)], Heads(4, 2, 32), device)
    clean = given.run(operation)
    spoiled = given.queries.clone()
    spoiled[4] = bad
    found = replace(given, queries=spoiled).run(operation)
    others = [row for row in range(11) if row != 4]
    assert same_bits(found[others], clean[others])
    assert found[4].isnan().all()


@pytest.mark.parametrize("operation", [ops.attend_prefill, ops.attend_decode])
def test_what_lies_behind_the_context_or_in_a_hole_is_never_seen(operation, device):
    given = case([(3, 21), (2, 117)], Heads(4, 2, 32), device, window=25, sinks=3)
    clean = given.run(operation)
    pages = given.pages.clone()
    held = {block for table in given.tables for block in table}
    for block in range(pages.shape[1]):
        if block not in held:
            pages[:, block] = torch.nan
    pages[:, given.tables[0][1], :, 21 % 16 :] = torch.nan
    assert same_bits(replace(given, pages=pages).run(operation), clean)


@pytest.mark.parametrize("operation", [ops.attend_prefill, ops.attend_decode])
def test_a_step_without_rows_gives_none(operation, device):
    assert case([], Heads(4, 2, 32), device).run(operation).shape == (0, 4, 32)
