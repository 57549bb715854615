"""Sampling on Triton, and its reference, against the numpy reference of the whole project."""

from collections import Counter

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from kernel_bed import random_rows

from firstlight.kernels import ops
from firstlight.kernels.draws import Draw, DrawTable, draw_table
from firstlight.kernels.gpu import philox
from firstlight.kernels.reference import sampling as reference
from firstlight.shared import sampling as right
from firstlight.shared.types import Sampling

VOCAB = 1000
SETTINGS = [
    Sampling(temperature=0.0),
    Sampling(temperature=1.0),
    Sampling(temperature=0.6),
    Sampling(temperature=1.0, top_k=1),
    Sampling(temperature=0.9, top_k=50),
    Sampling(temperature=1.0, top_p=0.9),
    Sampling(temperature=1.3, top_p=0.05),
    Sampling(temperature=1.0, top_p=1e-9),
    Sampling(temperature=1.0, min_p=0.1),
    Sampling(temperature=1.0, min_p=1.0),
    Sampling(temperature=0.8, min_p=0.02, top_k=200, top_p=0.7),
    Sampling(temperature=0.0, repetition_penalty=1.3),
    Sampling(temperature=1.0, repetition_penalty=0.7, presence_penalty=0.5),
    Sampling(temperature=0.7, frequency_penalty=-1.1, presence_penalty=-0.3, top_k=9),
    Sampling(temperature=1.0, logit_bias=((3, 5.0), (999, -100.0), (0, 7.5)), top_p=0.95),
]
PROMPT, ANSWER = (1, 5, 5, 9, 700, 3), (9, 9, 11, 999, 3)


def right_draw(sampling: Sampling, seed: int, position: int) -> right.Draw:
    return right.Draw(sampling, seed, 2, position, right.History(PROMPT, ANSWER))


def our_draw(sampling: Sampling, seed: int, position: int) -> Draw:
    return Draw(
        seed=seed,
        position=position,
        choice=2,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition=sampling.repetition_penalty,
        presence=sampling.presence_penalty,
        frequency=sampling.frequency_penalty,
        bias=sampling.logit_bias,
        seen=tuple({*PROMPT, *ANSWER}),
        counted=tuple((token, float(count)) for token, count in Counter(ANSWER).items()),
    )


def chosen(logits: torch.Tensor, draws: DrawTable, kernels: str) -> list[int]:
    own = logits.clone().to(draws.keys.device)
    ops.adjust_logits(own, draws, kernels=kernels)
    return ops.sample(own, draws, kernels=kernels).tolist()


@triton.jit
def noise_kernel(keys, bits, values, FIRST: tl.constexpr, COUNT: tl.constexpr):
    drawn = philox.noise_bits(FIRST // 4, keys, COUNT // 4)
    place = tl.arange(0, COUNT)
    tl.store(bits + place, drawn.to(tl.int64))
    tl.store(values + place, philox.gumbel(drawn))


@pytest.mark.parametrize(
    ("seed", "position", "choice"),
    [(0, 0, 0), (2**64 - 1, 2**32 - 1, 7), (0xDEADBEEF12345678, 9, 1)],
)
def test_bits_and_noise_are_the_references_to_the_bit(seed, position, choice, device):
    draws = draw_table([Draw(seed, position, choice)], 1 << 17, device=device)
    for first in (0, 65536):
        bits = torch.empty(4096, dtype=torch.int64, device=device)
        values = torch.empty(4096, device=device)
        noise_kernel[(1,)](draws.keys, bits, values, FIRST=first, COUNT=4096)
        ids = np.arange(first, first + 4096)
        where = {"seed": seed, "position": position, "choice": choice}
        expected_bits = right.noise_bits(ids, **where)
        assert np.array_equal(bits.cpu().numpy().astype(np.uint32), expected_bits)
        assert np.array_equal(values.cpu().numpy(), right.noise(ids, **where))
        ours = reference.noise(torch.from_numpy(ids), draws.keys[0].cpu())
        assert np.array_equal(ours.numpy(), right.noise(ids, **where))


@pytest.mark.parametrize("kernels", ["reference", "gpu"])
@pytest.mark.parametrize("scale", [0.5, 6.0])
def test_ids_are_those_of_the_numpy_reference_for_every_setting(kernels, scale, device):
    logits = random_rows(len(SETTINGS), VOCAB, seed=3) * scale
    where = [(17 * row + 2**40, 100 + row) for row in range(len(SETTINGS))]
    draws = [our_draw(sampling, *at) for sampling, at in zip(SETTINGS, where, strict=True)]
    table = draw_table(draws, VOCAB, device="cpu" if kernels == "reference" else device)
    expected = [
        right.sample(row.numpy(), right_draw(sampling, *at))
        for row, sampling, at in zip(logits, SETTINGS, where, strict=True)
    ]
    assert chosen(logits, table, kernels) == expected


@pytest.mark.parametrize("kernels", ["reference", "gpu"])
def test_equals_at_the_edge_of_a_filter_go_to_the_lowest_ids(kernels, device):
    logits = torch.zeros(VOCAB)
    logits[::7] = 1.0
    logits[3] = -0.0
    settings = [
        Sampling(top_k=10),
        Sampling(top_k=200),
        Sampling(top_p=0.25),
        Sampling(top_p=0.5),
        Sampling(top_k=300, top_p=0.75),
    ]
    rows = [(s, seed) for s in settings for seed in range(2)]
    table = draw_table(
        [our_draw(s, seed, 5) for s, seed in rows],
        VOCAB,
        device="cpu" if kernels == "reference" else device,
    )
    expected = [right.sample(logits.numpy(), right_draw(s, seed, 5)) for s, seed in rows]
    assert chosen(logits.repeat(len(rows), 1), table, kernels) == expected


@pytest.mark.parametrize("kernels", ["reference", "gpu"])
def test_adjusted_logits_are_the_numpy_references_to_the_bit(kernels, device):
    logits = random_rows(len(SETTINGS), VOCAB, seed=4) * 5
    draws = [our_draw(sampling, 1, 2) for sampling in SETTINGS]
    table = draw_table(draws, VOCAB, device="cpu" if kernels == "reference" else device)
    own = logits.clone().to(table.keys.device)
    ops.adjust_logits(own, table, kernels=kernels)
    for row, sampling in enumerate(SETTINGS):
        expected = right.penalized(logits[row].numpy(), right_draw(sampling, 1, 2))
        assert np.array_equal(own[row].cpu().numpy(), expected)


@pytest.mark.parametrize("kernels", ["reference", "gpu"])
@pytest.mark.parametrize("vocab", [1, 3, 4, 4097])
def test_any_vocabulary_will_do(kernels, vocab, device):
    logits = random_rows(3, vocab)
    settings = [Sampling(), Sampling(temperature=0.0), Sampling(top_p=0.5, top_k=2)]
    draws = [Draw(5, 6, 2, s.temperature, s.top_k, s.top_p) for s in settings]
    table = draw_table(draws, vocab, device="cpu" if kernels == "reference" else device)
    empty = right.History((), ())
    expected = [
        right.sample(row.numpy(), right.Draw(s, 5, 2, 6, empty))
        for row, s in zip(logits, settings, strict=True)
    ]
    assert chosen(logits, table, kernels) == expected


@pytest.mark.parametrize("kernels", ["reference", "gpu"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_gives_no_id_and_others_keep_theirs(kernels, bad, device):
    logits = random_rows(3, VOCAB)
    draws = [our_draw(Sampling(top_k=40, top_p=0.9), row, row) for row in range(3)]
    table = draw_table(draws, VOCAB, device="cpu" if kernels == "reference" else device)
    clean = chosen(logits, table, kernels)
    logits[1, 800] = bad
    assert chosen(logits, table, kernels) == [clean[0], -1, clean[2]]


def test_an_id_does_not_depend_on_the_rows_beside_it(device):
    logits = random_rows(len(SETTINGS), VOCAB, seed=3)
    draws = [our_draw(s, row, row) for row, s in enumerate(SETTINGS)]
    whole = chosen(logits, draw_table(draws, VOCAB, device=device), "gpu")
    for row in (1, 5, 10, 13):
        table = draw_table([draws[row]], VOCAB, device=device)
        assert chosen(logits[row : row + 1], table, "gpu") == [whole[row]]


def test_no_rows_give_no_ids(device):
    assert chosen(torch.empty(0, VOCAB), draw_table([], VOCAB, device=device), "gpu") == []
