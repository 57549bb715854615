"""Every family against transformers, in float32, on small random checkpoints."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from cpp_kernels import cpp
from families_bed import CASES, random_model, some_ids, their_logits, write_model

from firstlight.shared.engine.model.batch import SequenceRows, join_rows
from firstlight.shared.engine.model.load import LoadedModel, load_model, open_model, place
from firstlight.shared.engine.model.native import native_lacks
from firstlight.shared.errors import ConfigError

IDS = some_ids(150)
TABLE = [7, 2, 9, 0, 4, 11, 1, 5, 3, 8, 6, 10]
ERROR = 2e-5
"""Of the largest logit: rounding of two float32 layers, and of rotary angles that they compute in
float32 and we in float64."""


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    theirs = random_model(request.param)
    return theirs, write_model(tmp_path_factory.mktemp(request.param), theirs)


def load(folder, kernels="eager") -> LoadedModel:
    return load_model(folder, weights="f32", kernels=kernels, threads=1)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def best_new(logits: torch.Tensor, made: list[int]) -> int:
    """The best id that was not there before: random models love to say the same for ever."""
    return next(i for i in logits.argsort(descending=True).tolist() if i not in made)


@pytest.mark.parametrize("kernels", ["eager", "reference"])
def test_logits_are_those_of_transformers_through_a_cache_in_chunks(pair, kernels, prefill):
    theirs, folder = pair
    model = load(folder, kernels)
    found = prefill(model, model.storage(12), IDS, TABLE, 37, last=len(IDS))
    assert error(found, their_logits(theirs, IDS)) < ERROR


@cpp
def test_the_kernels_in_c_have_the_logits_of_transformers_or_say_what_they_lack(pair, prefill):
    theirs, folder = pair
    lacking = native_lacks(load(folder).config)
    if lacking:
        assert load(folder, "auto").kernels.startswith("eager")
        with pytest.raises(ConfigError, match=f"kernels cpu: no {re.escape(lacking)}"):
            load(folder, "cpu")
        return
    model = load(folder, "auto")
    assert model.kernels.startswith("cpu")
    found = prefill(model, model.storage(12), IDS, TABLE, 37, last=len(IDS))
    assert error(found, their_logits(theirs, IDS)) < 3e-3  # keys and values are halves


def test_greedy_text_is_that_of_transformers(pair, prefill):
    theirs, folder = pair
    model = load(folder)
    kv, ids = model.storage(12), IDS[:30]
    logits = prefill(model, kv, ids, TABLE, last=1)
    made: list[int] = []
    for position in range(len(ids), len(ids) + 40):
        made.append(best_new(logits[-1], made))
        rows = SequenceRows(made[-1:], position, TABLE, (0,))
        logits = model.transformer.logits(join_rows([rows]), kv)
    expected = their_logits(theirs, ids + made)[len(ids) - 1 : -1]
    assert made == [best_new(row, made[:index]) for index, row in enumerate(expected)]


def test_a_row_is_the_same_alone_in_company_and_however_its_cache_was_built(pair, prefill):
    _, folder = pair
    model = load(folder)
    expected = prefill(model, model.storage(12), IDS, TABLE, last=5)
    kv = model.storage(40)
    prefill(model, kv, IDS[:-5], TABLE, 16)
    others = [
        SequenceRows(some_ids(count, count), 0, [12 + 5 * i, 13 + 5 * i, 14 + 5 * i], ())
        for i, count in enumerate((1, 40, 3))
    ]
    mine = SequenceRows(IDS[-5:-2], len(IDS) - 5, TABLE, range(3))
    together = model.transformer.logits(join_rows([*others[:2], mine, others[2]]), kv)
    assert torch.equal(together, expected[:3])
    for row in (2, 1):
        alone = SequenceRows(IDS[-row : len(IDS) - row + 1], len(IDS) - row, TABLE, (0,))
        assert torch.equal(model.transformer.logits(join_rows([alone]), kv)[0], expected[-row])


def other_theta(config):
    return replace(config, rope_theta=1.01 * config.rope_theta)


def other_epsilon(config):
    return replace(config, rms_eps=10 * config.rms_eps)


def other_window(config):
    return replace(config, windows=tuple(size + bool(size) for size in config.windows))


def other_scaling(config):
    scaling = config.rope_scaling
    return replace(config, rope_scaling=scaling and replace(scaling, factor=1.01 * scaling.factor))


def other_magnitude(config):
    scaling = config.rope_scaling
    return replace(config, rope_scaling=scaling and replace(scaling, magnitude=1.0))


def other_share(config):
    experts = config.experts
    changed = experts and replace(experts, renormalize=not experts.renormalize)
    return replace(config, experts=changed)


def parity_error(theirs, folder, prefill, change, read=None) -> float | None:
    """Of the model with this change planted; None if it does not apply."""
    _, config, weights = open_model(folder)
    if read is None and change(config) == config:
        return None
    source = replace(weights, read=read(config, weights.read)) if read else weights
    changed = place(change(config), source, weights="f32", kernels="eager")
    model = replace(load(folder), config=config, transformer=changed)
    found = prefill(model, model.storage(12), IDS, TABLE, 37, last=len(IDS))
    return error(found, their_logits(theirs, IDS))


@pytest.mark.parametrize(
    "change",
    [other_theta, other_epsilon, other_window, other_scaling, other_magnitude, other_share],
)
def test_a_planted_error_of_the_configuration_fails_parity(change, pair, prefill):
    found = parity_error(*pair, prefill, change)
    assert found is None or found > 2 * ERROR


def test_a_planted_error_of_the_head_mapping_fails_parity(pair, prefill):
    def rolled(config, read):
        def heads_moved(name, layer):
            values = read(name, layer)
            if name not in ("q", "q_bias"):
                return values
            heads = values.reshape(config.heads, -1)
            return np.roll(heads, 1, axis=0).reshape(values.shape)

        return heads_moved

    found = parity_error(*pair, prefill, lambda config: config, rolled)
    assert found is not None
    assert found > 100 * ERROR


def test_every_planted_error_applies_to_a_family(tmp_path_factory):
    made = [
        open_model(write_model(tmp_path_factory.mktemp(case), random_model(case)))[1]
        for case in ("qwen2-yarn", "mistral-window", "qwen3-moe")
    ]
    changes = (other_theta, other_epsilon, other_window, other_scaling, other_magnitude)
    for change in (*changes, other_share):
        assert any(change(config) != config for config in made), change


def test_what_is_not_finite_stays_in_its_sequence(pair, prefill):
    _, folder = pair
    model = load(folder)
    with torch.inference_mode():
        model.transformer._embedding[3] = torch.nan
        model.transformer._embedding[4] = torch.inf
    ids = [9 if i in (3, 4) else i for i in IDS[:20]]
    expected = prefill(model, model.storage(12), ids, [1, 0], last=1)
    kv = model.storage(12)
    parts = [
        SequenceRows([5, 3, 4], 0, [2], range(3)),
        SequenceRows(ids, 0, [1, 0], (19,)),
        SequenceRows([3], 0, [3], (0,)),
    ]
    logits = model.transformer.logits(join_rows(parts), kv)
    assert torch.equal(logits[3], expected[0])
    assert logits[0].isfinite().all()
    assert not logits[1].isfinite().any()
    assert not logits[4].isfinite().any()
    assert kv.pages.isfinite().all()
