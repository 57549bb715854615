"""A mixture of experts on Triton against the reference."""

import pytest
import torch
from kernel_bed import FLOATS, assert_within_budget, random_rows, same_bits

from firstlight.kernels import ops
from firstlight.kernels.gpu.experts import TILE_PAIRS, tiles_of
from firstlight.kernels.matrix import Matrix, quantize_matrix
from firstlight.kernels.reference.matmul import weights_of
from firstlight.kernels.routes import Routes

EXPERTS, HIDDEN, WIDE = 5, 64, 32


def weights(form, group, dtype, device):
    def one(outputs, inputs, seed):
        weight = random_rows(EXPERTS, outputs, inputs, seed=seed) * inputs**-0.5
        made = quantize_matrix(weight.to(dtype) if form == "float" else weight, form, group)
        parts = (made.codes, made.scales, made.zeros)
        return Matrix(form, *(None if p is None else p.to(device) for p in parts))

    return one(2 * WIDE, HIDDEN, 1), one(HIDDEN, WIDE, 2)


def mixed(rows, gate_up, down, logits, kernels, chosen=2):
    routes = ops.route(logits, chosen, kernels=kernels)
    return ops.mix_experts(rows, gate_up, down, routes, kernels=kernels)


def as_floats(weight: Matrix, dtype) -> Matrix:
    return Matrix("float", weights_of(weight, dtype).cpu().contiguous())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(("experts", "chosen"), [(5, 2), (8, 1), (60, 4), (3, 3)])
def test_routes_are_those_of_the_reference(experts, chosen, renormalize, dtype, device):
    logits = random_rows(9, experts, dtype=dtype) * 3
    logits[4] = logits[4, 0]  # equals: the lowest come first
    expected = ops.route(logits, chosen, renormalize=renormalize, kernels="reference")
    found = ops.route(logits.to(device), chosen, renormalize=renormalize, kernels="gpu")
    assert torch.equal(found.experts.cpu(), expected.experts)
    exact = ops.route(logits.double(), chosen, renormalize=renormalize, kernels="reference")
    assert_within_budget(found.weights.cpu(), expected.weights, exact.weights)


@pytest.mark.parametrize(
    ("form", "group", "dtype"),
    [
        *(("float", None, dtype) for dtype in FLOATS),
        ("int8", None, torch.bfloat16),
        ("fp8", 32, torch.float16),
        ("int4", 32, torch.bfloat16),
    ],
    ids=str,
)
def test_a_mixture_is_as_exact_as_torch(form, group, dtype, device):
    gate_up, down = weights(form, group, dtype, device)
    rows, logits = random_rows(7, HIDDEN, dtype=dtype), random_rows(7, EXPERTS, seed=3)
    found = mixed(rows.to(device), gate_up, down, logits.to(device), "gpu").cpu()
    eager = mixed(rows, as_floats(gate_up, dtype), as_floats(down, dtype), logits, "reference")
    exact = mixed(
        rows.double(),
        as_floats(gate_up, torch.float64),
        as_floats(down, torch.float64),
        logits.double(),
        "reference",
    )
    assert_within_budget(found, eager, exact)


def test_an_expert_may_have_more_pairs_than_a_tile_and_another_none(device):
    rows = random_rows(TILE_PAIRS + 9, HIDDEN)
    experts = torch.full((len(rows), 1), 3, dtype=torch.int32)
    experts[5] = 1
    routes = Routes(experts, torch.ones(len(rows), 1))
    gate_up, _ = weights("float", None, torch.float32, "cpu")
    exact = ops.expert_matmul(rows.double(), as_floats(gate_up, torch.float64), routes)
    eager = ops.expert_matmul(rows, gate_up, routes, kernels="reference")
    there = Routes(experts.to(device), routes.weights.to(device))
    gate_up, _ = weights("float", None, torch.float32, device)
    found = ops.expert_matmul(rows.to(device), gate_up, there, kernels="gpu")
    assert_within_budget(found.cpu(), eager, exact)


def test_every_pair_is_in_one_tile_of_its_own_expert():
    experts = torch.randint(0, 4, (150, 2), generator=torch.Generator().manual_seed(1))
    order, owners, firsts, counts = tiles_of(experts, 6)
    seen = []
    for owner, first, count in zip(owners, firsts, counts, strict=True):
        pairs = order[first : first + count]
        assert (experts.flatten()[pairs] == owner).all()
        seen += pairs.tolist()
    assert sorted(seen) == list(range(300))


def test_a_row_alone_has_the_bits_that_it_has_among_others(device):
    gate_up, down = weights("int8", None, torch.float32, device)
    rows, logits = random_rows(40, HIDDEN).to(device), random_rows(40, EXPERTS, seed=3).to(device)
    whole = mixed(rows, gate_up, down, logits, "gpu")
    for row in (0, 21, 39):
        one = slice(row, row + 1)
        alone = mixed(rows[one].clone(), gate_up, down, logits[one].clone(), "gpu")
        assert same_bits(alone[0], whole[row])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_in_its_row(bad, device):
    gate_up, down = weights("float", None, torch.float32, device)
    rows, logits = random_rows(6, HIDDEN).to(device), random_rows(6, EXPERTS, seed=3).to(device)
    clean = mixed(rows, gate_up, down, logits, "gpu")
    spoiled_rows, spoiled_logits = rows.clone(), logits.clone()
    spoiled_rows[2, 7] = bad
    spoiled_logits[2] = bad
    found = mixed(spoiled_rows, gate_up, down, spoiled_logits, "gpu")
    others = [0, 1, 3, 4, 5]
    assert same_bits(found[others], clean[others])
    assert found[2].isnan().any()


def test_a_router_that_is_not_finite_still_names_experts_that_exist(device):
    logits = random_rows(3, EXPERTS)
    logits[0], logits[1, 2], logits[2] = torch.nan, torch.nan, -torch.inf
    expected = ops.route(logits, 3, kernels="reference")
    found = ops.route(logits.to(device), 3, kernels="gpu")
    assert torch.equal(found.experts.cpu(), expected.experts)
    assert found.weights.isnan().all()


def test_no_rows_give_no_rows(device):
    gate_up, down = weights("float", None, torch.float32, device)
    empty, logits = torch.empty(0, HIDDEN, device=device), torch.empty(0, EXPERTS, device=device)
    assert mixed(empty, gate_up, down, logits, "gpu").shape == (0, HIDDEN)
