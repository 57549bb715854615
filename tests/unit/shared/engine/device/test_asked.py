"""Which rows count, and that what is asked reaches the kernels as the numpy reference reads it."""

import numpy as np
import pytest
import torch
from device_bed import Held

from firstlight.shared.engine.device.asked import (
    FAILED,
    UNREACHED,
    ask,
    choose,
    logarithms,
    reached,
    read,
    send,
    size_bytes,
)
from firstlight.shared.engine.device.memory import LOGGED_ROWS_MAX
from firstlight.shared.engine.device.packed import Staging
from firstlight.shared.engine.plan import SequencePlan, StepPlan
from firstlight.shared.sampling import Draw, History, logprobs, sample
from firstlight.shared.types import Sampling

VOCAB = 64
SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(),
    Sampling(temperature=0.7, top_k=9, top_p=0.8, min_p=0.02),
    Sampling(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.9),
    Sampling(temperature=0.0, logit_bias=((3, 4.5), (60, -100.0))),
    Sampling(temperature=1e-6, top_k=VOCAB + 5),
)


def plan(*sequences: tuple[tuple[int, ...], tuple[Draw, ...]]) -> StepPlan:
    parts = [
        SequencePlan(str(i), 5, ids, max(len(draws) - 1, 0), (0, 1), draws)
        for i, (ids, draws) in enumerate(sequences)
    ]
    return StepPlan(tuple(parts))


def draws(sampling: Sampling, *drafted: int, seed: int = 11) -> tuple[Draw, ...]:
    history = History((1, 2, 2, 7), (7, 9))
    return tuple(
        Draw(sampling, seed, 3, 6 + ahead, history, drafted[:ahead])
        for ahead in range(len(drafted) + 1)
    )


def logits(rows: int) -> torch.Tensor:
    return 3 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(8))


def run(step: StepPlan, values: torch.Tensor):
    asked = ask(step, VOCAB)
    there = send(asked, Staging(torch.device("cpu"), size_bytes(asked)))
    found = choose(asked, there, values.index_select(0, there["rows"]), "reference")
    return asked, list(read(asked, found.numpy()))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_ids_are_those_of_the_numpy_reference(sampling):
    step = plan(((1, 2, 3), draws(Sampling())), ((4, 9, 7), draws(sampling, 9, 7, seed=2**63 + 5)))
    values = logits(6)
    asked, found = run(step, values)
    assert asked.arrays["rows"].tolist() == [2, 3, 4, 5]
    expected = [
        sample(values[row].numpy(), draw)
        for row, draw in zip(asked.arrays["rows"].tolist(), asked.draws, strict=True)
    ]
    assert found[0].id == expected[0]
    assert found[1].id == expected[1]
    for place, one in enumerate(found[2:]):
        counts = all(expected[1 + i] == (9, 7)[i] for i in range(place + 1))
        assert one.id == (expected[2 + place] if counts else -1)
        assert one.error == ""


def test_a_row_counts_up_to_the_first_draft_that_is_refused():
    ids = torch.tensor([5, 6, 7, 8, 5, 6, 9])
    drafts = torch.tensor([5, 6, 1, -1, 4, 6, -1])
    firsts = torch.tensor([0, 0, 0, 0, 4, 4, 4])
    assert reached(ids, drafts, firsts).tolist() == [5, 6, 7, UNREACHED, 5, UNREACHED, UNREACHED]


def test_a_row_that_failed_is_told_wherever_it_stands_and_stops_only_its_own_sequence():
    ids = torch.tensor([FAILED, 6, 4, FAILED, 8])
    drafts = torch.tensor([5, -1, 3, -1, -1])
    firsts = torch.tensor([0, 0, 2, 2, 4])
    assert reached(ids, drafts, firsts).tolist() == [FAILED, UNREACHED, 4, FAILED, 8]


def test_a_row_that_is_not_finite_fails_alone():
    values = logits(2)
    values[0, 3] = torch.nan
    _, (first, second) = run(plan(((1,), draws(Sampling())), ((2,), draws(Sampling()))), values)
    assert first.error == "logits at position 6 are not finite, or nothing is left"
    assert second.error == ""
    assert second.id == sample(values[1].numpy(), draws(Sampling())[0])


def test_logprobs_are_of_raw_logits_and_the_lowest_of_equals_comes_first():
    values = logits(3)
    values[2, 5] = values[2, 17] = values[2].max() + 1
    cold = Sampling(temperature=0.0, logprobs=4, logit_bias=((20, 50.0),))
    step = plan(((1,), draws(Sampling(logprobs=0))), ((2,), draws(Sampling())), ((3,), draws(cold)))
    _, found = run(step, values)
    assert found[1].logprobs is None
    for row in (0, 2):
        expected = logprobs(values[row].numpy(), found[row].id, (0, 0, 4)[row])
        assert found[row].logprobs.chosen == pytest.approx(expected.chosen, rel=1e-6)
        assert [i for i, _ in found[row].logprobs.top] == [i for i, _ in expected.top]
        assert [v for _, v in found[row].logprobs.top] == pytest.approx(
            [v for _, v in expected.top], rel=1e-6
        )
    assert found[2].id == 20


def test_logprobs_of_many_rows_take_the_memory_of_a_few():
    values, own = torch.randn(5 * LOGGED_ROWS_MAX, 3000), torch.arange(5 * LOGGED_ROWS_MAX)
    with Held() as few:
        some = logarithms(values[:LOGGED_ROWS_MAX], own[:LOGGED_ROWS_MAX], 4)
    with Held() as many:
        found = logarithms(values, own, 4)
    assert torch.equal(found[:LOGGED_ROWS_MAX], some)
    assert many.most < 1.1 * few.most


def test_a_step_that_samples_nothing_asks_nothing():
    assert ask(plan(((1, 2), ())), VOCAB) is None


def test_what_penalties_look_at_goes_there_as_the_reference_counts_it():
    sampling = Sampling(temperature=0.0, frequency_penalty=1.5, presence_penalty=0.5)
    asked = ask(plan(((2, 9), draws(sampling, 9))), VOCAB)
    starts, ids = asked.arrays["starts"], asked.arrays["ids"]
    own = slice(starts[2, 1], starts[2, 2])
    assert dict(zip(ids[own].tolist(), asked.arrays["values"][own].tolist(), strict=True)) == {
        7: 1.0,
        9: 2.0,
    }
    assert np.array_equal(starts[:2], np.zeros((2, 3)))
