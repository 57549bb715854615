"""Checkpoints of 8 and 4 bits: packed here as their formats say, and run against transformers."""

import pytest
import torch
from coded_bed import COMPRESSED, FORMATS, Tensors, awq, change, float8, write_coded
from cpp_kernels import cpp
from families_bed import random_model, some_ids, their_logits, write_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from firstlight.shared.engine.model.load import load_model, open_model
from firstlight.shared.errors import ConfigError

IDS = some_ids(40)


@pytest.fixture(params=FORMATS)
def coded(request, tmp_path):
    theirs = random_model("llama-3")
    return request.param, theirs, write_coded(tmp_path, theirs, request.param)


def test_a_checkpoint_in_codes_has_the_logits_of_what_they_stand_for(coded, prefill):
    _, theirs, folder = coded
    model = load_model(folder, kernels="eager", threads=1)
    found = prefill(model, model.storage(4), IDS, [3, 1, 0], 16, last=40)
    expected = their_logits(theirs, IDS)
    assert (found - expected).abs().max() < 2e-5 * expected.abs().max()


@cpp
def test_the_kernels_in_c_take_codes_of_four_bits_as_they_are(coded, prefill):
    form, theirs, folder = coded
    model = load_model(folder, threads=1)
    taken = form in ("awq", "gptq", "gptq-v2")
    assert model.kernels.startswith(f"cpu weights={'q4+q8' if taken else 'q8'} ")
    found = prefill(model, model.storage(4), IDS, [3, 1, 0], 16, last=40).log_softmax(-1)
    expected = their_logits(theirs, IDS).log_softmax(-1)
    assert (expected.exp() * (expected - found)).sum(-1).mean() < 2e-3


@pytest.mark.filterwarnings("ignore")
def test_blocks_of_float8_stand_for_what_transformers_takes_them_for(tmp_path, prefill):
    FORMATS["fp8-even-blocks"] = (
        lambda weight, name: float8(weight, name, (16, 32)),
        {
            "quant_method": "fp8",
            "weight_block_size": [16, 32],
            "activation_scheme": "dynamic",
            "dequantize": True,
        },
    )
    write_coded(tmp_path, random_model("llama-3"), "fp8-even-blocks")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    model = load_model(tmp_path, kernels="eager", threads=1)
    found = prefill(model, model.storage(4), IDS, [3, 1, 0], 16, last=40)
    expected = their_logits(theirs, IDS)
    assert (found - expected).abs().max() < 2e-5 * expected.abs().max()


@cpp
def test_codes_taken_as_they_are_differ_from_their_floats_by_rounding_only(tmp_path, prefill):
    theirs = random_model("llama-3")
    write_coded(tmp_path, theirs, "awq")
    _, _, weights = open_model(tmp_path)
    blocks, floats = weights.blocks("down", 1), weights.read("down", 1)
    assert blocks is not None
    assert blocks.type == "Q4_1"
    halves = blocks.rows.reshape(64, 3, 20)
    scale = halves[:, :, :2].copy().view("<f2").astype("f4")
    least = halves[:, :, 2:4].copy().view("<f2").astype("f4")
    packed = halves[:, :, 4:]
    codes = torch.cat((torch.from_numpy(packed & 15), torch.from_numpy(packed >> 4)), -1)
    values = codes.numpy() * scale + least
    assert abs(values.reshape(64, 96) - floats).max() <= 15 * scale.max() * 2**-11


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes', expected one of fp8"),
        ({"quant_method": "awq", "bits": 3}, "quantization_config.bits is 3, expected 4"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version is 'gemv'"),
        ({"quant_method": "awq", "bits": 4, "zero_point": False}, "zero_point is False"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "is 'marlin'"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:x": {}}}, "dynamic is"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size is 0"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt is 'e5m2'"),
        ({"quant_method": "fp8", "weight_block_size": [0, 1]}, "weight_block_size is"),
        (COMPRESSED | {"format": "pack-quantized"}, "format is 'pack-quantized'"),
        (COMPRESSED | {"config_groups": {}}, "config_groups is {}"),
        ("fp8", "quantization_config is 'fp8', expected an object"),
    ],
)
def test_a_quantization_that_is_not_supported_is_named(config, wrong, tmp_path):
    write_model(tmp_path, random_model("llama-3"))
    change(tmp_path, quantization_config=config)
    with pytest.raises(ConfigError, match=wrong):
        load_model(tmp_path, kernels="eager", threads=1)


BASE = "model.layers.1.mlp.down_proj"


def dropped(state: Tensors, part: str) -> None:
    del state[f"{BASE}.{part}"]


def widened(state: Tensors, part: str) -> None:
    state[f"{BASE}.{part}"] = torch.cat([state[f"{BASE}.{part}"]] * 2)


def halved(state: Tensors, part: str) -> None:
    state[f"{BASE}.{part}"] = state[f"{BASE}.{part}"].half()


@pytest.mark.parametrize(
    ("form", "spoil", "part", "wrong"),
    [
        ("awq", dropped, "scales", "down_proj.scales' is missing"),
        ("awq", dropped, "qzeros", "down_proj.qzeros' is missing"),
        ("awq", dropped, "qweight", "down_proj.weight' is missing"),
        ("awq", widened, "qweight", r"qweight' is \[192, 8\], .* asks for \[96, 8\]"),
        ("gptq", widened, "g_idx", r"g_idx' is \[192\]"),
        ("gptq", halved, "qzeros", "qzeros' is of type F16, the configuration asks for I32"),
        ("fp8-blocks", dropped, "weight_scale_inv", "down_proj.weight_scale' is missing"),
        ("fp8-blocks", widened, "weight_scale_inv", r"weight_scale_inv' is \[6, 3\]"),
        ("fp8-outputs", widened, "weight", r"down_proj.weight' is \[128, 96\]"),
    ],
)
def test_a_part_that_is_missing_or_wrong_is_named(form, spoil, part, wrong, tmp_path):
    write_coded(tmp_path, random_model("llama-3"), form)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    spoil(state, part)
    save_file(state, path)
    with pytest.raises(ConfigError, match=wrong):
        load_model(tmp_path, kernels="eager", threads=1)


def test_float8_without_a_word_on_it_in_the_configuration_is_refused(tmp_path):
    write_coded(tmp_path, random_model("llama-3"), "fp8-matrix")
    change(tmp_path, quantization_config=None)
    with pytest.raises(ConfigError, match="is of type F8_E4M3, the configuration asks for F32"):
        load_model(tmp_path, kernels="eager", threads=1)


@pytest.mark.parametrize(
    ("form", "part", "value", "wrong"),
    [
        ("fp8-matrix", "weight", float("nan"), "down_proj.weight' holds values"),
        ("fp8-blocks", "weight_scale_inv", float("inf"), "weight_scale_inv' holds values"),
        ("awq", "scales", float("nan"), "down_proj.scales' holds values"),
        ("gptq", "g_idx", 3, "g_idx' names group 3 of 3"),
    ],
)
def test_values_that_would_spoil_everything_are_named(form, part, value, wrong, tmp_path):
    write_coded(tmp_path, random_model("llama-3"), form)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    flat = state[f"{BASE}.{part}"].view(-1)
    flat[5 % len(flat)] = value
    save_file(state, path)
    with pytest.raises(ConfigError, match=wrong):
        load_model(tmp_path, kernels="eager", threads=1)


def test_experts_may_be_codes_too(tmp_path, prefill):
    theirs = random_model("qwen3-moe")
    write_model(tmp_path, theirs)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    fused = dict(theirs.named_parameters())
    for name in [name for name in state if ".experts." in name]:
        coded, values = awq(state.pop(name), name.removesuffix(".weight"))
        state |= coded
        block, _, expert, matrix, _ = name.rsplit(".", 4)
        if matrix == "down_proj":
            fused[f"{block}.experts.down_proj"].data[int(expert)] = values
        else:
            half = slice(0, 32) if matrix == "gate_proj" else slice(32, 64)
            fused[f"{block}.experts.gate_up_proj"].data[int(expert), half] = values
    save_file(state, path, metadata={"format": "pt"})
    change(tmp_path, quantization_config=FORMATS["awq"][1])
    model = load_model(tmp_path, threads=1)
    found = prefill(model, model.storage(4), IDS, [3, 1, 0], 16, last=40)
    expected = their_logits(theirs, IDS)
    assert (found - expected).abs().max() < 2e-5 * expected.abs().max()
