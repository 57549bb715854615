"""The decoder in C++ against the layers in plain torch, on small random models and steps."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from cpp_kernels import cpp

from firstlight.kernels.cpu import extension
from firstlight.shared.engine.kv.storage import KvStorage
from firstlight.shared.engine.model.batch import SequenceRows, join_rows
from firstlight.shared.engine.model.config import ModelConfig
from firstlight.shared.engine.model.load import LoadedModel, place
from firstlight.shared.engine.model.weights import Weights, expected_shapes
from firstlight.shared.engine.plan import SequencePlan, StepPlan
from firstlight.shared.engine.runner import TorchRunner, step_batch
from firstlight.shared.errors import ConfigError
from firstlight.shared.sampling import Draw, History, sample
from firstlight.shared.types import Sampling

BLOCKS = 60
SHAPES = [  # heads, kv heads, head_dim, hidden, intermediate, bias, q/k norm
    (9, 3, 64, 96, 160, False, False),
    (4, 4, 16, 64, 96, True, False),
    (14, 2, 32, 96, 64, True, True),
    (2, 1, 80, 48, 48, False, True),
    (32, 1, 16, 64, 64, False, False),
]


def config(shape) -> ModelConfig:
    heads, kv_heads, head_dim, hidden, intermediate, bias, norm = shape
    return ModelConfig(
        architecture="llama",
        layers=2,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocab=77,
        rope_theta=10_000.0,
        rms_eps=1e-5,
        context_max=2048,
        tied=bool(heads % 2),
        qkv_bias=bias,
        qk_norm=norm,
        eos_ids=(1,),
    )


def random_weights(of: ModelConfig, seed: int) -> Weights:
    shapes, names = expected_shapes(of), sorted(expected_shapes(of))

    def read(name: str, layer: int) -> np.ndarray:
        draw = np.random.default_rng((seed, names.index(name), layer))
        values = draw.standard_normal(shapes[name]).astype(np.float32)
        return values * 0.3 + 1 if "norm" in name else values / shapes[name][-1] ** 0.5

    return Weights((), read)


def steps(seed: int, length: int):
    """Three sequences that grow by chunks of all sizes, some steps with all of them."""
    random = Random(seed)
    tables = [random.sample(range(20 * i, 20 * i + 20), 20) for i in range(3)]
    done = [0, 0, 0]
    while min(done) < length:
        parts = []
        for one in random.sample(range(3), random.randint(1, 3)):
            count = min(random.choice((1, 1, 2, 4, 9, 31, 90)), 320 - done[one])
            if count:
                ids = [random.randrange(77) for _ in range(count)]
                wanted = sorted(random.sample(range(count), min(count, 2)))
                parts.append(SequenceRows(ids, done[one], tables[one], wanted))
                done[one] += count
        if parts:
            yield join_rows(parts)


@cpp
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_random_steps_give_the_logits_of_the_reference(shape, threads):
    of = config(shape)
    weights = random_weights(of, 3)
    fast = place(of, weights, weights="f32", kernels="cpu", threads=threads)
    plain = place(of, weights, weights="f32", kernels="reference")
    fast_kv, plain_kv = KvStorage(of, BLOCKS, 0, fast.form), KvStorage(of, BLOCKS)
    for batch in steps(sum(shape), 300):
        found, expected = fast.logits(batch, fast_kv), plain.logits(batch, plain_kv)
        # Keys and values are halves: 2⁻¹¹ of their size, and no more errors than terms.
        assert torch.allclose(found, expected, rtol=0, atol=4e-3 * float(expected.abs().max()))


@pytest.mark.skipif(
    len(extension.instruction_sets()) < 2, reason="this machine runs one form of the C++ kernels"
)
@pytest.mark.parametrize("weights", ["q4", "q8", "bf16", "f32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_instruction_set_gives_the_same_bits(shape, weights, monkeypatch):
    of, found = config(shape), []
    for name in extension.instruction_sets():
        monkeypatch.setattr(extension, "instruction_sets", lambda name=name: (name,))
        model = place(of, random_weights(of, 3), weights=weights, kernels="cpu", threads=2)
        kv = KvStorage(of, BLOCKS, 0, model.form)
        assert name in model.in_force
        found.append([*(model.logits(batch, kv) for batch in steps(sum(shape), 200)), kv.pages])
        monkeypatch.undo()
    for other in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], other, strict=True))


@cpp
@pytest.mark.parametrize("weights", ["q4", "q8", "bf16"])
def test_other_formats_are_near_the_reference_over_the_same_weights(weights):
    of = config(SHAPES[0])
    near = place(of, random_weights(of, 4), weights=weights, kernels="cpu")
    plain = place(of, random_weights(of, 4), weights="f32", kernels="reference")
    batch = next(iter(steps(1, 40)))
    found = near.logits(batch, KvStorage(of, BLOCKS, 0, near.form))
    expected = plain.logits(batch, KvStorage(of, BLOCKS))
    similarity = torch.nn.functional.cosine_similarity(found, expected, dim=1).min()
    assert similarity > {"q4": 0.94, "q8": 0.999, "bf16": 0.999}[weights]


@cpp
def test_what_a_block_held_before_does_not_matter():
    of = config(SHAPES[0])
    model = place(of, random_weights(of, 5), kernels="cpu", weights="f32")
    clean, dirty = KvStorage(of, BLOCKS, 0, model.form), KvStorage(of, BLOCKS, 0, model.form)
    dirty.pages.fill_(float("nan"))
    for batch in steps(2, 120):
        assert torch.equal(model.logits(batch, clean), model.logits(batch, dirty))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_refused_draft_whose_rows_are_not_finite_leaves_no_trace(value):
    of, bad = config(SHAPES[1]), 5
    weights = random_weights(of, 7)

    def spoiled(name: str, layer: int) -> np.ndarray:
        values = weights.read(name, layer).copy()
        if name == "embedding":
            values[bad] = value
        return values

    model = place(of, Weights((), spoiled), weights="f32", kernels="eager")
    found = []
    for drafted in ([], [bad, bad]):
        kv = KvStorage(of, BLOCKS, 0, model.form)
        model.logits(join_rows([SequenceRows([1, 2, 3, *drafted], 0, [0], range(0))]), kv)
        found.append(model.logits(join_rows([SequenceRows([4], 3, [0], range(1))]), kv))
    assert torch.isfinite(found[0]).all()
    assert torch.equal(*found)


@cpp
def test_values_beyond_the_range_of_halves_stay_finite_in_the_pool():
    of = config(SHAPES[1])
    weights = random_weights(of, 6)

    def huge(name: str, layer: int) -> np.ndarray:
        return weights.read(name, layer) * (1e6 if name in ("k", "v") else 1)

    model = place(of, Weights((), huge), weights="f32", kernels="cpu")
    kv = KvStorage(of, BLOCKS, 0, model.form)
    logits = model.logits(next(iter(steps(3, 40))), kv)
    assert torch.isfinite(kv.pages).all()
    assert float(kv.pages.abs().max()) == 65504.0
    assert torch.isfinite(logits).all()


@cpp
@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        (SequenceRows([77], 0, [0], (0,)), "ids has a value"),
        (SequenceRows([-1], 0, [0], (0,)), "ids has a value"),
        (SequenceRows([1], 2048, list(range(60)) * 3, (0,)), "positions has a value"),
        (SequenceRows([1], 0, [60], (0,)), "slots has a value"),
        (SequenceRows([1], 16, [-1, 0], (0,)), "names a block outside"),
        (SequenceRows([1], 0, [0], (1,)), "logit_rows has a value"),
        (SequenceRows([], 0, [0], ()), "without rows"),
    ],
)
def test_a_step_that_contradicts_itself_is_refused_before_anything_is_written(part, wrong):
    of = config(SHAPES[0])
    model = place(of, random_weights(of, 7), kernels="cpu", weights="f32")
    kv = KvStorage(of, BLOCKS, 0, model.form)
    with pytest.raises(ValueError, match=wrong):
        model.logits(join_rows([part]), kv)
    assert not kv.pages.any()


@cpp
def test_a_pool_of_another_form_is_refused():
    of = config(SHAPES[0])
    model = place(of, random_weights(of, 7), kernels="cpu", weights="f32")
    batch = join_rows([SequenceRows([1], 0, [0], (0,))])
    with pytest.raises(ValueError, match="pages are not halves"):
        model.logits(batch, KvStorage(of, BLOCKS))


@cpp
def test_a_shape_that_the_kernels_cannot_run_is_refused_by_name():
    of = config((4, 4, 8, 64, 96, False, False))
    with pytest.raises(ConfigError, match="multiples of 16"):
        place(of, random_weights(of, 8), kernels="cpu", weights="f32")


def test_a_shape_that_the_kernels_cannot_run_gets_torchs_from_auto():
    of = config((4, 4, 8, 64, 96, False, False))
    assert place(of, random_weights(of, 8), kernels="auto").signature.startswith("eager")


@cpp
def test_a_matrix_that_its_format_cannot_hold_is_named_when_the_model_is_loaded():
    of = config(SHAPES[0])
    weights = random_weights(of, 8)

    def huge(name: str, layer: int) -> np.ndarray:
        return weights.read(name, layer) * np.float32(1e9 if (name, layer) == ("up", 1) else 1)

    with pytest.raises(ConfigError, match=r"kernels cpu: gate, up of layer 1: output \d+ has"):
        place(of, Weights((), huge), weights="q8", kernels="cpu")


@cpp
def test_a_model_that_finds_no_memory_is_refused_and_ends_nothing():
    of = replace(config(SHAPES[0]), heads=1 << 30, kv_heads=1, head_dim=1 << 18)
    with pytest.raises(ConfigError, match="kernels cpu: no memory for the model"):
        place(of, random_weights(of, 8), weights="q8", kernels="cpu")


@pytest.mark.parametrize("weights", ["auto", "f32", "bf16"])
def test_where_no_kernels_were_built_auto_takes_torchs(weights, monkeypatch):
    monkeypatch.setattr(extension, "_missing", "no compiler")
    of = config(SHAPES[0])
    model = place(of, random_weights(of, 9), kernels="auto", weights=weights)
    assert model.signature.startswith("eager")


def test_where_no_kernels_were_built_they_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(extension, "_missing", "no compiler")
    of = config(SHAPES[0])
    with pytest.raises(
        ConfigError, match=r"kernels cpu: the C\+\+ kernels are not installed: no compiler"
    ):
        place(of, random_weights(of, 9), kernels="cpu")


@pytest.mark.parametrize("kernels", [pytest.param("cpu", marks=cpp), "eager"])
def test_a_runner_samples_what_the_reference_picks_from_the_models_logits(kernels):
    made = config(SHAPES[0])
    model = place(made, random_weights(made, 1), kernels=kernels, threads=2)
    history = History((5, 6), (7, 7))
    kinds = (
        Sampling(temperature=0.0),
        Sampling(temperature=0.9, top_p=0.8, frequency_penalty=0.3),
        Sampling(temperature=1.5, repetition_penalty=1.2),
    )
    draws = tuple(
        Draw(kind, 2**63 + place, 0, 20 + place, history) for place, kind in enumerate(kinds)
    )
    plan = StepPlan((SequencePlan("one", 0, (9, 8, 7), 2, (3,), draws),))
    loaded = LoadedModel(made, model, "random", "", "")
    runner = TorchRunner(loaded, loaded.storage(4))
    found = [one.id for one in runner.run(plan).sampled[0]]
    logits = model.logits(step_batch(plan), loaded.storage(4)).numpy()
    assert found == [sample(*one) for one in zip(logits, draws, strict=True)]
    assert found == list(model.pick(logits, draws))
