"""The fast sampler gives the reference's ids, and a row knows nothing of the rows beside it."""

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import pytest
from cpp_kernels import cpp
from hypothesis import given, settings
from hypothesis import strategies as st

from firstlight.kernels.cpu import extension
from firstlight.shared.engine.model.native_sampler import native_pick
from firstlight.shared.engine.sampler import left, pick_rows, sample_rows
from firstlight.shared.sampling import Draw, History, kept, sample
from firstlight.shared.types import Sampling


@cache
def decoder(vocab: int, kernels: str, threads: int):
    return extension.native().Decoder(
        kernels=kernels,
        threads=threads,
        heads=1,
        kv_heads=1,
        head_dim=16,
        hidden=16,
        intermediate=16,
        vocab=vocab,
        rms_eps=1e-5,
        frequencies=[1.0] * 8,
    )


def native_rows(
    logits: np.ndarray, draws: Sequence[Draw], kernels: str = "", threads: int = 2
) -> Sequence[int]:
    one = decoder(logits.shape[1], kernels or extension.instruction_sets()[0], threads)
    return native_pick(one, logits, draws)


WAYS = [pick_rows, pytest.param(native_rows, marks=cpp)]
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


@pytest.mark.parametrize("pick", WAYS)
@pytest.mark.parametrize("sampling", KINDS, ids=repr)
@pytest.mark.parametrize("ties", [False, True])
def test_ids_equal_the_reference_over_a_whole_vocabulary(pick, sampling, ties):
    logits, draws = rows(4, 49152, 5, ties=ties), [draw(sampling, seed) for seed in range(4)]
    logits[range(4), range(0, 4000, 1000)] += 9
    assert list(pick(logits, draws)) == [sample(*one) for one in zip(logits, draws, strict=True)]


@pytest.mark.parametrize("pick", WAYS)
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
def test_sets_and_ids_equal_the_reference_for_any_logits(pick, values, sampling, seed):
    row = np.array(values, dtype=np.float32) / 8
    tempered = row / np.float32(sampling.temperature)
    assert left(tempered, sampling).tolist() == sorted(kept(tempered, sampling).tolist())
    one = Draw(sampling, seed, 0, 9, History(()))
    assert list(pick(row[None], [one])) == [sample(row, one)]


def random_sampling(rng: np.random.Generator, vocab: int) -> Sampling:
    def one_of(*values: float) -> float:
        return float(rng.choice(values))

    biased = rng.permutation(vocab)[: rng.integers(0, 6)] if rng.random() < 0.3 else ()
    return Sampling(
        temperature=one_of(0, 1e-5, 0.01, 0.3, 0.7, 1, 1, 1.3, 2, 10),
        top_p=one_of(1, 1, 0.1, 0.5, 0.9, 0.95, 0.9999, rng.uniform(0.01, 1)),
        top_k=int(one_of(0, 0, 0, 1, 2, 40, 300, vocab - 1, vocab, vocab + 1)),
        min_p=one_of(0, 0, 0, 1e-4, 0.05, 0.5, 1, rng.random()),
        repetition_penalty=one_of(1, 1, 1.1, 0.5, 3),
        presence_penalty=one_of(0, 0, 0.5, -1.5),
        frequency_penalty=one_of(0, 0, 0.3, -0.2),
        logit_bias=tuple((int(token), float(rng.uniform(-100, 100))) for token in biased),
    )


def random_draw(rng: np.random.Generator, vocab: int) -> Draw:
    prompt, generated, drafted = (
        rng.integers(0, vocab, rng.integers(0, most)).tolist() for most in (60, 60, 4)
    )
    return Draw(
        random_sampling(rng, vocab),
        int(rng.integers(0, 2**64, dtype=np.uint64)),
        int(rng.integers(0, 4)),
        int(rng.integers(0, 10_000)),
        History(prompt, generated),
        tuple(drafted),
    )


def random_rows(rng: np.random.Generator, size: int, vocab: int) -> np.ndarray:
    made = rng.normal(size=(size, vocab)) * rng.choice([0.01, 1, 3, 10], size=(size, 1))
    # At 1e8 a float32 has steps of 8: many scores are equal, also of different logits.
    made += rng.choice([0, 0, -30, 1000, 1e8], size=(size, 1))
    digits = rng.choice([-1, 0, 1, 9], size=size)
    return np.array(
        [np.round(row, digit) for row, digit in zip(made, digits, strict=True)], dtype=np.float32
    )


@cpp
@pytest.mark.parametrize("kernels", extension.instruction_sets())
def test_thousands_of_random_rows_get_the_ids_of_the_reference_with_1_and_2_threads(kernels):
    rng = np.random.default_rng(11)
    small = [1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 100, 255, 257, 1000, 1023, 4096, 4999, 5000]
    sizes = [(200, vocab) for vocab in small] + [(100, 49152)]
    for size, vocab in sizes:
        logits = random_rows(rng, size, vocab)
        draws = [random_draw(rng, vocab) for _ in range(size)]
        expected = [sample(*one) for one in zip(logits, draws, strict=True)]
        for threads in (1, 2):
            assert list(native_rows(logits, draws, kernels, threads)) == expected


@pytest.mark.parametrize("pick", WAYS)
def test_a_flood_of_biases_is_applied_as_the_reference_does(pick):
    rng = np.random.default_rng(3)
    for temperature in (0.0, 1.0):
        biased = rng.permutation(5000)[:1024].tolist()
        sampling = Sampling(
            temperature=temperature,
            top_p=0.9,
            logit_bias=tuple((token, float(rng.uniform(-100, 100))) for token in biased),
        )
        logits, draws = rows(20, 5000, 4), [draw(sampling, seed) for seed in range(20)]
        expected = [sample(*one) for one in zip(logits, draws, strict=True)]
        assert list(pick(logits, draws)) == expected


@pytest.mark.parametrize("pick", WAYS)
@pytest.mark.parametrize(
    "sampling",
    [Sampling(top_p=0.99), Sampling(top_k=40_000), Sampling(min_p=1e-5), Sampling(min_p=1e-3)],
    ids=repr,
)
def test_many_ids_far_below_the_largest_win_as_often_as_they_should(pick, sampling):
    logits = np.zeros((20, 49152), dtype=np.float32)
    logits[:, 30_000] = 9
    draws = [draw(sampling, seed) for seed in range(20)]
    found = list(pick(logits, draws))
    assert found == [sample(*one) for one in zip(logits, draws, strict=True)]
    assert (set(found) == {30_000}) == (sampling.min_p == 1e-3)


@pytest.mark.parametrize("pick", WAYS)
@pytest.mark.parametrize("huge", [-1e30, -3e38])
@pytest.mark.parametrize("sampling", KINDS, ids=repr)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_the_only_id_that_is_not_hugely_negative_wins(pick, huge, sampling):
    logits = np.full((2, 3000), huge, dtype=np.float32)
    logits[[0, 1], [2999, 1234]] = 2.0
    assert list(pick(logits, [draw(sampling, 1)] * 2)) == [2999, 1234]


@pytest.mark.parametrize("pick", WAYS)
def test_a_row_gives_the_same_id_alone_and_at_any_place_in_a_batch(pick):
    logits = rows(64, 4099, 8)
    draws = [draw(KINDS[place % len(KINDS)], place) for place in range(64)]
    together = [one.id for one in sample_rows(logits, draws, pick)]
    alone = [sample_rows(logits[i : i + 1], draws[i : i + 1], pick)[0].id for i in range(64)]
    backwards = [one.id for one in sample_rows(logits[::-1], draws[::-1], pick)][::-1]
    shifted = [one.id for one in sample_rows(logits[5:], draws[5:], pick)]
    assert together == alone == backwards
    assert shifted == together[5:]


@pytest.mark.parametrize("pick", WAYS)
@pytest.mark.parametrize("temperature", [0.0, 9e-6])
def test_the_lowest_id_wins_a_tie_at_a_temperature_that_is_next_to_0(pick, temperature):
    logits = np.zeros((2, 100), dtype=np.float32)
    logits[1, [30, 60]] = 1
    found = sample_rows(logits, [draw(Sampling(temperature=temperature), 1)] * 2, pick)
    assert [one.id for one in found] == [0, 30]


@pytest.mark.parametrize("pick", WAYS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [5, 99])
@pytest.mark.parametrize("sampling", KINDS[:8], ids=repr)
def test_a_row_that_is_not_finite_fails_alone_and_says_where(pick, value, place, sampling):
    logits = rows(3, 100, 1)
    logits[1, place] = value
    found = sample_rows(logits, [draw(sampling, seed, position=77) for seed in range(3)], pick)
    assert [bool(one.error) for one in found] == [False, True, False]
    assert "position 77" in found[1].error


@pytest.mark.parametrize("pick", WAYS)
def test_logprobs_come_only_if_asked_for(pick):
    logits = rows(2, 100, 1)
    plain, asked = sample_rows(
        logits,
        [draw(Sampling(temperature=0.0), 1), draw(Sampling(temperature=0.0, logprobs=2), 1)],
        pick,
    )
    assert plain.logprobs is None
    assert asked.logprobs is not None
    assert asked.logprobs.top[0] == (asked.id, asked.logprobs.chosen)
    assert len(asked.logprobs.top) == 2


@pytest.mark.parametrize("pick", WAYS)
@pytest.mark.parametrize(
    ("sampling", "position"), [(Sampling(logit_bias=((500, 1.0),)), 4), (Sampling(), -4)]
)
def test_an_exception_in_one_rows_sampling_fails_that_row_alone(pick, sampling, position):
    logits = rows(3, 100, 1)
    wrong = Draw(sampling, 1, 0, position, History(()))
    good = [draw(Sampling(), 2), draw(Sampling(), 1)]
    found = sample_rows(logits, [good[0], wrong, good[1]], pick)
    assert f"position {position} failed" in found[1].error
    assert [one.id for one in found[::2]] == list(pick(logits[::2], good))


@cpp
@pytest.mark.parametrize("outside", [100, -1, 2**40])
@pytest.mark.parametrize(
    "sampling", [Sampling(repetition_penalty=1.1), Sampling(presence_penalty=1.0)], ids=repr
)
def test_an_id_outside_of_the_vocabulary_is_an_error_of_the_cpp_form(outside, sampling):
    wrong = Draw(sampling, 1, 0, 4, History((), (outside,)))
    with pytest.raises(ValueError, match=f"history has id {outside}"):
        native_rows(rows(1, 100, 1), [wrong])


@cpp
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_row_whose_largest_logit_overflows_is_an_error_of_the_cpp_form():
    logits = np.full((1, 100), 1e36, dtype=np.float32)
    with pytest.raises(ValueError, match="leave no id"):
        native_rows(logits, [draw(Sampling(temperature=1e-4), 1)])


@cpp
def test_lists_that_do_not_fit_the_draws_are_an_error_of_the_cpp_form():
    arrays = {
        "draws": np.zeros(1, extension.native().DRAW),
        "bias_ids": np.empty(0, np.int64),
        "biases": np.empty(0, np.float32),
        "seen": np.empty(0, np.int64),
        "counted": np.empty(0, np.int64),
        "counts": np.empty(0, np.float32),
    }
    call = partial(decoder(100, extension.instruction_sets()[0], 1).sample, logits=rows(1, 100, 1))
    assert call(**arrays).tolist() == [int(rows(1, 100, 1).argmax())]
    for name in arrays:
        with pytest.raises(ValueError, match=r"expected|logits"):
            call(**arrays | {name: np.zeros(2, arrays[name].dtype)})
    with pytest.raises(ValueError, match=r"not \[draws, vocab\]"):
        call(**arrays, logits=rows(1, 99, 1))
