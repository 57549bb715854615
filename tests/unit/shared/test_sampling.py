"""The sampling rule: known answers, vectors, transforms against plain formulas, and exactness."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

from firstlight.shared.errors import RequestError
from firstlight.shared.sampling import (
    Draw,
    History,
    check_sampling,
    gumbel,
    kept,
    logprobs,
    noise,
    noise_bits,
    penalized,
    philox,
    sample,
    weights,
)
from firstlight.shared.types import Sampling

VECTORS = Path(__file__).parents[2] / "vectors" / "sampling.json"


def philox_by_hand(counter: list[int], key: list[int]) -> list[int]:
    """Philox-4x32-10 in Python's integers, written from the paper."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (
            (right >> 32) ^ b ^ k0,
            right & 0xFFFFFFFF,
            (left >> 32) ^ d ^ k1,
            left & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [a, b, c, d]


def words(*values: int) -> list[np.ndarray]:
    return [np.array([value], dtype=np.uint64) for value in values]


def draw(sampling: Sampling, *, seed: int = 5, position: int = 9, **history: object) -> Draw:
    held = History(history.get("prompt", ()), history.get("generated", ()))  # type: ignore[arg-type]
    return Draw(sampling, seed, 0, position, held, tuple(history.get("drafted", ())))  # type: ignore[call-overload]


def some_logits(vocab: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=vocab) * 3).astype(np.float32)


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_known_answers(counter, key, answer):
    assert [int(word[0]) for word in philox(words(*counter), words(*key))] == list(answer)
    assert philox_by_hand(list(counter), list(key)) == list(answer)


def test_vectors_in_the_repository_are_what_we_compute():
    vectors = json.loads(VECTORS.read_text())
    for one in vectors["philox"]:
        assert philox_by_hand(one["counter"], one["key"]) == one["words"]
        assert [int(w[0]) for w in philox(words(*one["counter"]), words(*one["key"]))] == one[
            "words"
        ]
    for one in vectors["noise"]:
        where = {"seed": one["seed"], "position": one["position"], "choice": one["choice"]}
        ids = np.array(one["ids"], dtype=np.int64)
        assert noise_bits(ids, **where).tolist() == one["bits"]
        assert [float(g) for g in noise(ids, **where)] == one["noise"]
    for one in vectors["samples"]:
        held = History(one["prompt"], one["generated"])
        what = Draw(Sampling(**one["sampling"]), one["seed"], one["choice"], one["position"], held)
        row = np.array(one["logits"], dtype=np.float32)
        assert sample(row, what) == one["id"]


def test_the_word_of_an_id_is_word_id_and_3_of_counter_id_over_4():
    ids = np.array([0, 1, 2, 3, 4, 7, 1001, 49151], dtype=np.int64)
    seed = 0x0123456789ABCDEF
    expected = [
        philox_by_hand([int(i) >> 2, 77, 3, 0], [seed & 0xFFFFFFFF, seed >> 32])[i & 3] for i in ids
    ]
    assert noise_bits(ids, seed=seed, position=77, choice=3).tolist() == expected


def test_noise_of_an_id_does_not_depend_on_which_other_ids_are_asked_for():
    everything = np.arange(49152, dtype=np.int64)
    where = {"seed": 2**64 - 1, "position": 4095, "choice": 0}
    whole = noise(everything, **where)
    for ids in (everything[5:20000], everything[::7], everything[[3, 49150]], everything[-1:]):
        assert np.array_equal(noise(ids, **where), whole[ids])


def test_gumbel_is_finite_at_both_ends_and_has_mean_and_variance_of_gumbel():
    ends = np.r_[np.arange(1000), np.arange(2**32 - 1000, 2**32)].astype(np.uint32)
    assert np.isfinite(gumbel(ends)).all()
    drawn = noise(np.arange(400_000, dtype=np.int64), seed=3, position=1, choice=0)
    assert abs(drawn.mean() - np.euler_gamma) < 5 * math.sqrt(math.pi**2 / 6 / 400_000)
    assert abs(drawn.var() - math.pi**2 / 6) < 0.03


def test_gumbel_falls_as_bits_rise():
    bits = np.linspace(0, 2**32 - 1, 10_001).astype(np.uint64).astype(np.uint32)
    assert (np.diff(gumbel(bits)) <= 0).all()


def test_temperature_0_is_the_lowest_argmax_after_penalties():
    row = np.array([1.0, 5.0, 5.0, 4.9], dtype=np.float32)
    assert sample(row, draw(Sampling(temperature=0.0))) == 1
    assert sample(row, draw(Sampling(temperature=0.0, logit_bias=((3, 1.0),)))) == 3
    used = draw(Sampling(temperature=0.0, presence_penalty=0.05), generated=(1,))
    assert sample(row, used) == 2


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_once():
    row = np.array([2.0, -2.0, 2.0, -2.0], dtype=np.float32)
    one = draw(Sampling(repetition_penalty=2.0), prompt=(0,), generated=(1, 1), drafted=(0,))
    assert penalized(row, one).tolist() == [1.0, -4.0, 2.0, -2.0]


def test_presence_and_frequency_count_generated_and_drafted_ids_and_not_the_prompt():
    row = np.zeros(4, dtype=np.float32)
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    one = draw(sampling, prompt=(0, 0, 3), generated=(1, 1, 3), drafted=(1, 2))
    assert penalized(row, one).tolist() == [0.0, -1.25, -0.75, -0.75]


def test_penalties_leave_the_raw_logits_alone():
    row = np.ones(4, dtype=np.float32)
    penalized(row, draw(Sampling(logit_bias=((1, 3.0),))))
    assert row.tolist() == [1.0] * 4


def test_top_k_keeps_exactly_k_and_the_lower_id_of_a_tie():
    row = np.array([1.0, 3.0, 2.0, 2.0, 2.0], dtype=np.float32)
    assert kept(row, Sampling(top_k=3)).tolist() == [1, 2, 3]


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05])).astype(np.float32)
    assert kept(row, Sampling(top_p=0.5)).tolist() == [0]
    assert kept(row, Sampling(top_p=0.51)).tolist() == [0, 1]
    assert kept(row, Sampling(top_p=0.96)).tolist() == [0, 1, 2, 3]


def test_top_p_is_renormalized_over_what_top_k_left():
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)
    assert kept(row, Sampling(top_p=0.6)).tolist() == [0, 1]
    assert kept(row, Sampling(top_k=2, top_p=0.57)).tolist() == [0]


def test_min_p_compares_with_the_most_probable_id():
    row = np.log(np.array([0.5, 0.26, 0.2, 0.04])).astype(np.float32)
    assert kept(row, Sampling(min_p=0.5)).tolist() == [0, 1]
    assert kept(row, Sampling(min_p=1.0)).tolist() == [0]


def test_removed_ids_never_win_whatever_their_noise():
    row = some_logits(64, 1)
    left = set(kept(row, Sampling(top_k=4)).tolist())
    picks = {sample(row, draw(Sampling(top_k=4), seed=seed)) for seed in range(500)}
    assert picks == left


def test_logprobs_are_log_softmax_of_the_raw_logits():
    row = some_logits(50, 2)
    wide = row.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum())
    found = logprobs(row, 7, 5)
    assert found.chosen == pytest.approx(expected[7], abs=1e-9)
    assert [token for token, _ in found.top] == np.argsort(-wide, kind="stable")[:5].tolist()
    assert [value for _, value in found.top] == pytest.approx(np.sort(expected)[::-1][:5].tolist())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -1),
        ("min_p", 1.5),
        ("min_p", math.nan),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -math.inf),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logit_bias", ((100, 1.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((1, math.nan),)),
        ("logit_bias", ((1, 100.5),)),
        ("logit_bias", ((1, 1.0), (1, 2.0))),
        ("logit_bias", tuple((token % 100, 1.0) for token in range(2000))),
    ],
)
def test_a_value_without_meaning_is_an_error_that_names_it(name, value):
    with pytest.raises(RequestError) as caught:
        check_sampling(Sampling(**{name: value}), 100)
    assert caught.value.param == name


def test_every_extreme_that_is_allowed_passes():
    check_sampling(Sampling(temperature=0.0, top_p=1e-9, top_k=10**9, min_p=1.0, logprobs=20), 100)


# The statistical test: 50,000 seeds at one position follow the distribution that the rule names.

SEEDS = 50_000
VOCAB = 64


def noise_of_seeds(position: int) -> np.ndarray:
    """G [seeds, vocab] for seeds 0 … 49,999, computed by one broadcast."""
    seeds = np.arange(SEEDS, dtype=np.uint64)[:, None]
    zero = np.zeros((1, 1), dtype=np.uint64)
    quads = np.arange(VOCAB // 4, dtype=np.uint64)[None, :]
    found = philox((quads, zero + np.uint64(position), zero, zero), (seeds, zero))
    return gumbel(np.moveaxis(found, 0, -1).reshape(SEEDS, VOCAB).astype(np.uint32))


def p_value(ids: np.ndarray, probabilities: np.ndarray) -> float:
    """Chi-square over cells with at least 10 expected; the rest is one cell."""
    expected = probabilities * SEEDS
    large = expected >= 10
    counts = np.bincount(ids, minlength=VOCAB)
    observed = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum())
    if wanted[-1] == 0:
        assert observed[-1] == 0
        observed, wanted = observed[:-1], wanted[:-1]
    return float(chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue)


def share(row: np.ndarray) -> np.ndarray:
    """Softmax, in float64."""
    odds = np.exp(row.astype(np.float64))
    return odds / odds.sum()


CASES = [
    (1, Sampling(temperature=1.0)),
    (2, Sampling(temperature=0.7, top_k=50, top_p=0.9)),
    (3, Sampling(temperature=1.2, min_p=0.02, top_k=20)),
]


@pytest.mark.parametrize(("prompt", "sampling"), CASES)
def test_50000_seeds_follow_the_distribution(prompt, sampling):
    tempered = some_logits(VOCAB, prompt) / np.float32(sampling.temperature)
    ids = np.sort(kept(tempered, sampling))
    picks = ids[(tempered[ids] + noise_of_seeds(100)[:, ids]).argmax(axis=1)]
    for seed in range(0, SEEDS, 500):  # the vectorized sampler above is the real one
        one = draw(sampling, seed=seed, position=100)
        assert sample(some_logits(VOCAB, prompt), one) == picks[seed]
    probabilities = np.zeros(VOCAB)
    probabilities[ids] = weights(tempered)[ids] / weights(tempered)[ids].sum()
    assert p_value(picks, probabilities) > 1e-3


def test_ids_drafted_with_the_same_noise_agree_often_and_change_nothing():
    target, drafter = some_logits(VOCAB, 1), some_logits(VOCAB, 1) + some_logits(VOCAB, 9) / 6
    shared = noise_of_seeds(100)
    truth, draft = (target + shared).argmax(axis=1), (drafter + shared).argmax(axis=1)
    p, q = (share(row) for row in (target, drafter))
    variation = np.abs(p - q).sum() / 2
    assert (truth == draft).mean() >= (1 - variation) / (1 + variation) - 0.01


@pytest.mark.parametrize("prompt", [1, 2, 3])
def test_the_biased_rule_shared_noise_with_u_below_p_over_q_is_caught(prompt):
    """Draft with the shared noise, accept iff u < p/q with u of that noise: known to be wrong."""
    target = some_logits(VOCAB, prompt)
    drafter = target + some_logits(VOCAB, 9) / 3
    p, q = (share(row) for row in (target, drafter))
    shared = noise_of_seeds(100)
    draft = (np.log(q) + shared).argmax(axis=1)
    u = np.exp(-np.exp(-shared[np.arange(SEEDS), draft]))
    accepted = u < (p / q)[draft]
    rest = np.maximum(p - q, 0)
    left = np.flatnonzero(rest)
    instead = left[(np.log(rest[left]) + shared[:, left]).argmax(axis=1)]
    assert p_value(np.where(accepted, draft, instead), p) < 1e-3


@pytest.mark.parametrize("drafted", [(), (3,), (3, 4, 4, 90, 1)])
def test_history_is_that_of_sets_and_counters_however_it_grew(drafted):
    prompt = np.random.default_rng(1).integers(0, 60, 40).tolist()
    ids = np.random.default_rng(2).integers(0, 90, 200).tolist()
    grown = History(prompt)
    for length, token in enumerate(ids, 1):
        grown.append(token)
        for history in (grown, History(prompt, ids[:length])):
            found, counts = history.counts(drafted)
            assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == Counter(
                [*ids[:length], *drafted]
            )
            seen = history.seen(drafted).tolist()
            assert sorted(seen) == sorted({*prompt, *ids[:length], *drafted})


def test_history_does_not_change_by_asking_with_drafts_nor_an_answer_by_later_ids():
    history = History((1, 2), (3,))
    history.counts((3, 4))
    history.seen((5,))
    ids, counts = history.counts(())
    seen = history.seen(())
    history.append(3)
    history.append(6)
    assert (ids.tolist(), counts.tolist(), seen.tolist()) == ([3], [1.0], [1, 2, 3])
    assert [part.tolist() for part in history.counts(())] == [[3, 6], [2.0, 1.0]]
