"""The fast sampler gives the reference's ids, and a row knows nothing of the rows beside it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstlight.shared.engine.sampler import left, pick, sample_rows
from firstlight.shared.sampling import Draw, History, kept, sample
from firstlight.shared.types import Sampling

KINDS = [
    Sampling(temperature=0.0),
    Sampling(temperature=0.0, frequency_penalty=0.4, logit_bias=((3, -9.0),)),
    Sampling(temperature=1.0),
    Sampling(temperature=0.05),
    Sampling(temperature=1e-5),
    Sampling(temperature=50.0),
    Sampling(temperature=0.8, top_p=0.9),
    Sampling(temperature=1.5, top_p=0.9999),
    Sampling(top_k=40),
    Sampling(top_k=1),
    Sampling(temperature=1.2, min_p=0.05, top_p=0.95, repetition_penalty=1.1),
    Sampling(temperature=0.7, top_k=50, top_p=0.8, presence_penalty=0.5),
]


def draw(sampling: Sampling, seed: int, position: int = 40) -> Draw:
    return Draw(sampling, seed, seed % 3, position, History(range(50), (3, 3, 4)), (7, 3))


def rows(count: int, vocab: int, seed: int, *, ties: bool = False) -> np.ndarray:
    made = (np.random.default_rng(seed).normal(size=(count, vocab)) * 3).astype(np.float32)
    return np.round(made, 1) if ties else made


@pytest.mark.parametrize("sampling", KINDS, ids=repr)
@pytest.mark.parametrize("ties", [False, True])
def test_ids_equal_the_reference_over_a_whole_vocabulary(sampling, ties):
    for seed, row in enumerate(rows(4, 49152, 5, ties=ties)):
        row[seed * 1000] += 9
        assert pick(row, draw(sampling, seed)) == sample(row, draw(sampling, seed))


@given(
    st.lists(st.integers(-60, 60), min_size=2, max_size=3000),
    st.builds(
        Sampling,
        temperature=st.floats(1e-4, 5),
        top_p=st.floats(0.01, 1),
        top_k=st.integers(0, 60),
        min_p=st.floats(0, 1),
    ),
    st.integers(0, 2**64 - 1),
)
@settings(max_examples=150, deadline=None)
def test_sets_and_ids_equal_the_reference_for_any_logits(values, sampling, seed):
    row = np.array(values, dtype=np.float32) / 8
    tempered = row / np.float32(sampling.temperature)
    assert left(tempered, sampling).tolist() == sorted(kept(tempered, sampling).tolist())
    one = Draw(sampling, seed, 0, 9, History(()))
    assert pick(row, one) == sample(row, one)


def test_a_row_gives_the_same_id_alone_and_at_any_place_in_a_batch():
    logits = rows(64, 4099, 8)
    draws = [draw(KINDS[place % len(KINDS)], place) for place in range(64)]
    together = [one.id for one in sample_rows(logits, draws)]
    alone = [sample_rows(logits[i : i + 1], draws[i : i + 1])[0].id for i in range(64)]
    backwards = [one.id for one in sample_rows(logits[::-1], draws[::-1])][::-1]
    shifted = [one.id for one in sample_rows(logits[5:], draws[5:])]
    assert together == alone == backwards
    assert shifted == together[5:]


def test_the_lowest_id_wins_a_tie_at_temperature_0():
    logits = np.zeros((2, 100), dtype=np.float32)
    logits[1, [30, 60]] = 1
    found = sample_rows(logits, [draw(Sampling(temperature=0.0), 1)] * 2)
    assert [one.id for one in found] == [0, 30]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_fails_alone_and_says_where(value):
    logits = rows(3, 100, 1)
    logits[1, 5] = value
    found = sample_rows(logits, [draw(Sampling(), seed, position=77) for seed in range(3)])
    assert [bool(one.error) for one in found] == [False, True, False]
    assert "position 77" in found[1].error


def test_logprobs_come_only_if_asked_for():
    logits = rows(2, 100, 1)
    plain, asked = sample_rows(
        logits, [draw(Sampling(temperature=0.0), 1), draw(Sampling(temperature=0.0, logprobs=2), 1)]
    )
    assert plain.logprobs is None
    assert asked.logprobs is not None
    assert asked.logprobs.top[0] == (asked.id, asked.logprobs.chosen)
    assert len(asked.logprobs.top) == 2


def test_an_exception_in_one_rows_sampling_fails_that_row_alone():
    logits = rows(2, 100, 1)
    outside = Draw(Sampling(logit_bias=((500, 1.0),)), 1, 0, 4, History(()))
    found = sample_rows(logits, [outside, draw(Sampling(), 1)])
    assert "position 4" in found[0].error
    assert not found[1].error
