"""Folders of several files, and folders that are wrong: each is refused by name."""

import json

import pytest
import torch
from families_bed import random_model, some_ids, their_logits, write_model
from safetensors.torch import load_file, save_file

from firstlight.shared.engine.model.load import load_model
from firstlight.shared.errors import ConfigError

IDS = some_ids(30)


def change(folder, file="config.json", **entries):
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def load(folder):
    return load_model(folder, kernels="eager", threads=1)


@pytest.fixture
def sharded(tmp_path):
    theirs = random_model("mixtral")
    write_model(tmp_path, theirs, shard="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    return theirs, tmp_path


def test_a_model_of_several_shards_has_the_logits_of_transformers(sharded, prefill):
    theirs, folder = sharded
    model = load(folder)
    found = prefill(model, model.storage(2), IDS, [1, 0], last=30)
    expected = their_logits(theirs, IDS)
    assert (found - expected).abs().max() < 2e-5 * expected.abs().max()


def test_a_shard_that_is_missing_is_named(sharded):
    _, folder = sharded
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ConfigError, match=f"{shard.name}: cannot be read"):
        load(folder)


def test_a_shard_that_the_index_does_not_name_is_not_read(sharded):
    _, folder = sharded
    index = folder / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    last = sorted(set(places.values()))[-1]
    change(folder, index.name, weight_map={k: v for k, v in places.items() if v != last})
    with pytest.raises(ConfigError, match=r"tensor '.*' is missing"):
        load(folder)


def test_a_tensor_in_two_shards_is_refused(sharded):
    _, folder = sharded
    first, second = sorted(folder.glob("model-*.safetensors"))[:2]
    state = load_file(second)
    name = next(iter(load_file(first)))
    save_file(state | {name: load_file(first)[name]}, second)
    with pytest.raises(ConfigError, match=f"'{name}' is in another shard too"):
        load(folder)


@pytest.mark.parametrize(
    ("places", "wrong"),
    [
        ({}, "weight_map is missing"),
        ({"a": "../model.safetensors"}, "not a plain file name"),
        ({"a": "nothing.safetensors"}, "nothing.safetensors: cannot be read"),
    ],
)
def test_an_index_that_is_wrong_is_refused(places, wrong, sharded):
    _, folder = sharded
    change(folder, "model.safetensors.index.json", weight_map=places)
    with pytest.raises(ConfigError, match=wrong):
        load(folder)


SCALING = {"factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("case", "entries", "wrong"),
    [
        ("llama-3", {"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not supported"),
        ("llama-3", {"architectures": []}, "is not supported; supported are llama"),
        ("llama-3", {"mlp_bias": True}, "mlp_bias is True"),
        ("qwen3", {"attention_bias": True}, "attention_bias is True"),
        ("llama-3", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("llama-3", {"use_sliding_window": True}, "use_sliding_window is True"),
        ("llama-3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("llama-3", {"num_hidden_layers": 1 << 20}, "num_hidden_layers is 1048576"),
        ("llama-3", {"rope_parameters": {"rope_type": "dynamic"}}, "rope_type is 'dynamic'"),
        (
            "llama-3",
            {"rope_parameters": None, "rope_scaling": {"type": "su"}},
            "rope_scaling.type is 'su'",
        ),
        ("llama-3", {"rope_parameters": "yarn"}, "rope_parameters is 'yarn', expected an object"),
        ("llama-3", {"rope_parameters": {"rope_type": "linear"}}, "factor is None"),
        (
            "llama-3",
            {"rope_parameters": {"rope_type": "linear", "factor": float("nan")}},
            "factor is nan",
        ),
        ("llama-3", {"rope_parameters": {"rope_type": "yarn", "factor": 0.5}}, "factor is 0.5"),
        (
            "llama-3",
            {"rope_parameters": SCALING | {"rope_type": "llama3", "low_freq_factor": 1.0}},
            "high_freq_factor is None",
        ),
        (
            "llama-3",
            {"rope_parameters": SCALING | {"rope_type": "yarn", "beta_slow": 40}},
            "beta_slow is 40, expected less than beta_fast",
        ),
        (
            "llama-3",
            {"rope_parameters": SCALING | {"rope_type": "yarn", "rope_theta": 1}},
            "rope_theta is 1.0, yarn needs more",
        ),
        ("mistral-window", {"sliding_window": 0}, "sliding_window is 0"),
        ("qwen2-window", {"layer_types": ["full_attention"]}, "layer_types is"),
        ("qwen2-window", {"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ("qwen2-window", {"layer_types": None, "max_window_layers": -1}, "max_window_layers is"),
        ("mixtral", {"num_local_experts": 0}, "num_local_experts is 0"),
        ("mixtral", {"num_local_experts": 5}, r"gate.weight' is \[4, 64\], .* asks for \[5, 64\]"),
        ("mixtral", {"num_local_experts": 3}, r"gate.weight' is \[4, 64\], .* asks for \[3, 64\]"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9, expected 1…4"),
        ("qwen3-moe", {"moe_intermediate_size": 48}, "experts.0.gate_proj.weight' is"),
        ("qwen3-moe", {"mlp_only_layers": "all"}, "mlp_only_layers is 'all'"),
        ("qwen3-moe", {"mlp_only_layers": [1]}, "layers.1.mlp.gate_proj.weight' is missing"),
        ("qwen3-moe", {"decoder_sparse_step": 2}, "layers.0.mlp.gate_proj.weight' is missing"),
    ],
)
def test_a_configuration_that_does_not_fit_is_named(case, entries, wrong, tmp_path):
    write_model(tmp_path, random_model(case))
    change(tmp_path, **entries)
    with pytest.raises(ConfigError, match=wrong):
        load(tmp_path)


def test_older_names_of_the_scaling_of_rotary_embedding_mean_the_same(tmp_path, prefill):
    theirs = random_model("qwen2-yarn")
    write_model(tmp_path, theirs)
    old = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    change(tmp_path, rope_parameters=None, rope_theta=1_000.0, rope_scaling=old)
    model = load(tmp_path)
    found = prefill(model, model.storage(2), IDS, [1, 0], last=30)
    assert (found - their_logits(theirs, IDS)).abs().max() < 1e-4


def test_yarn_reaches_as_far_as_its_factor_says(tmp_path):
    write_model(tmp_path, random_model("qwen2-yarn"))
    change(tmp_path, max_position_embeddings=64)
    assert load(tmp_path).config.context_max == 256


def test_a_window_that_is_longer_than_the_context_is_none(tmp_path):
    write_model(tmp_path, random_model("mistral-window"))
    change(tmp_path, sliding_window=512)
    assert load(tmp_path).config.windows == ()


def test_another_configuration_of_the_same_weights_is_another_numerics_class(tmp_path):
    write_model(tmp_path, random_model("llama-3"))
    one = load(tmp_path).numerics_class
    change(tmp_path, rms_norm_eps=2e-6)
    other = load(tmp_path).numerics_class
    change(tmp_path, rms_norm_eps=1e-6, eos_token_id=[7, 8])
    assert one != other
    assert load(tmp_path).numerics_class == one


def test_weights_of_an_unknown_type_are_named(tmp_path):
    write_model(tmp_path, random_model("llama-3"))
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    save_file(state | {"model.norm.weight": state["model.norm.weight"].double()}, path)
    with pytest.raises(ConfigError, match=r"'model\.norm\.weight' has dtype 'F64'"):
        load(tmp_path)


def test_a_weight_that_is_not_finite_is_named(tmp_path):
    theirs = random_model("mixtral")
    theirs.model.layers[1].mlp.experts.down_proj.data[2, 3, 4] = torch.inf
    write_model(tmp_path, theirs)
    with pytest.raises(ConfigError, match=r"experts.2.w2.weight' holds values that are not finite"):
        load(tmp_path)
