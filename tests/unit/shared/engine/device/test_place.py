"""Weights on a device: the numbers of the file, in its own codes, with no second copy of them."""

import tracemalloc

import pytest
import torch
from coded_bed import FORMATS, float8, write_coded
from device_bed import gpu_kernels
from families_bed import CASES, random_model, write_model
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from firstlight.kernels.gpu.kernels import GpuKernels
from firstlight.kernels.reference.matmul import weights_of
from firstlight.shared.engine.device import place
from firstlight.shared.engine.device.model import GpuModel
from firstlight.shared.engine.device.place import Placer
from firstlight.shared.engine.model.load import open_model
from firstlight.shared.errors import ConfigError
from firstlight.shared.model_files import default_model_path

FORMS = {
    "fp8-blocks": "float",  # of 24 × 40: not whole groups of 32 inputs
    "fp8-blocks-of-32": "fp8",
    "fp8-matrix": "fp8",
    "fp8-outputs": "fp8",
    "awq": "int4",
    "gptq": "int4",
    "gptq-act-order": "float",
    "gptq-v2": "int4",
}
OWN = FORMATS | {
    "fp8-blocks-of-32": (
        lambda weight, name: float8(weight, name, (16, 32)),
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 32]},
    )
}


def placer(folder, weights="auto", kernels: GpuKernels | None = None) -> Placer:
    _, config, source = open_model(folder)
    return Placer(config, source, kernels or gpu_kernels("reference"), weights)


@pytest.mark.parametrize("form", FORMS)
def test_codes_stay_codes_where_kernels_have_their_form(form, tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS, form, OWN[form])
    folder = write_coded(tmp_path, random_model("llama-3"), form)
    made = placer(folder).matrix("q", "k", "v", layer=1)
    read = open_model(folder)[2].read
    expected = torch.cat([torch.from_numpy(read(name, 1)) for name in ("q", "k", "v")])
    assert made.form == FORMS[form]
    if made.form == "float":
        assert torch.equal(made.codes, expected.bfloat16())
    else:
        assert torch.equal(weights_of(made), expected)


def test_experts_are_one_matrix_each_in_the_order_of_their_numbers(tmp_path):
    folder = write_model(tmp_path, random_model("mixtral"))
    made = placer(folder, "f32").experts([(f"gate.{i}", f"up.{i}") for i in range(4)], 1)
    read = open_model(folder)[2].read
    for expert in range(4):
        parts = [torch.from_numpy(read(f"{name}.{expert}", 1)) for name in ("gate", "up")]
        assert torch.equal(made.codes[expert], torch.cat(parts))


def test_blocks_of_a_gguf_file_are_codes_with_heads_in_halves():
    made = placer(default_model_path())
    read = open_model(default_model_path())[2].read
    for names in (("q", "k", "v"), ("down",)):
        expected = torch.cat([torch.from_numpy(read(name, 2)) for name in names])
        found = made.matrix(*names, layer=2)
        values = weights_of(found)
        exact = expected.bfloat16().float() if found.form == "float" else expected
        assert torch.equal(values, exact)


@pytest.mark.parametrize(
    ("weights", "form", "dtype", "error"),
    [
        ("f32", "float", torch.float32, 0.0),
        ("bf16", "float", torch.bfloat16, 2**-8),
        ("q8", "int8", torch.int8, 0.5 / 127),
        ("q4", "int4", torch.uint8, 0.5 / 7),
    ],
)
def test_a_format_asked_for_by_name_holds_for_every_matrix(weights, form, dtype, error, tmp_path):
    folder = write_model(tmp_path, random_model("llama-3"))
    made = placer(folder, weights).matrix("gate", "up", layer=0)
    read = open_model(folder)[2].read
    expected = torch.cat([torch.from_numpy(read(name, 0)) for name in ("gate", "up")])
    assert (made.form, made.codes.dtype) == (form, dtype)
    assert (weights_of(made) - expected).abs().max() <= error * expected.abs().max()


def old_gpu() -> GpuKernels:
    return GpuKernels(torch.device("cpu"), (8, 0), 1 << 30, form="reference")


def test_codes_that_the_gpu_is_too_old_for_are_refused_by_name(tmp_path):
    folder = write_coded(tmp_path, random_model("llama-3"), "fp8-matrix")
    with pytest.raises(ConfigError) as told:
        placer(folder, kernels=old_gpu()).matrix("q", layer=0)
    assert str(told.value) == (
        "weights 'auto': weights of fp8 need sm_89 or later, and cpu is sm_80; weights 'bf16' run "
        "there"
    )
    assert placer(folder, "bf16", old_gpu()).matrix("q", layer=0).form == "float"


def test_a_value_that_is_not_finite_is_refused_with_its_name(tmp_path):
    folder = write_model(tmp_path, random_model("llama-3"))
    state = load_file(folder / "model.safetensors")
    state["model.layers.1.mlp.down_proj.weight"][3, 4] = torch.inf
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"layers\.1\.mlp\.down_proj\.weight.*not finite"):
        placer(folder).matrix("down", layer=1)


class HostTensors(TorchDispatchMode):
    """The largest memory of its own that a tensor on the host had."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.device.type == "cpu" and not _is_view(func):
            self.most = max(self.most, out.untyped_storage().nbytes())
        return out


def _is_view(func) -> bool:
    return any(value.alias_info is not None for value in func._schema.returns)


def test_floats_go_from_the_mapping_to_the_device_without_a_copy_on_the_host(tmp_path, monkeypatch):
    """The device is `meta`, which has no memory, so that all that is seen is the host's."""
    wide = {"hidden_size": 512, "intermediate_size": 1024}
    monkeypatch.setitem(CASES, "wide", (LlamaConfig, LlamaForCausalLM, wide))
    folder = write_model(tmp_path, random_model("wide").bfloat16())
    monkeypatch.setattr(place, "PIECE_BYTES", 40_000)
    monkeypatch.setattr(torch.Tensor, "isfinite", lambda there: torch.ones(1, dtype=torch.bool))
    kernels = GpuKernels(torch.device("meta"), (9, 0), 1 << 30, form="reference")
    placed = placer(folder, "bf16", kernels)
    placed.matrix("q", "k", "v", layer=0)  # what is made once: a mapping, a cache
    matrix_bytes = 1024 * 512 * 2
    with HostTensors() as seen:
        tracemalloc.start()
        for layer in (0, 1):
            placed.matrix("gate", "up", layer=layer)
            placed.matrix("down", layer=layer)
        placed.floats("embedding")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert placed.bytes > 5 * matrix_bytes
    assert seen.most < 1024
    assert peak < matrix_bytes / 8  # of numpy's arrays and of Python's objects


def test_a_model_counts_what_it_placed(tmp_path):
    folder = write_model(tmp_path, random_model("smollm2"))
    _, config, source = open_model(folder)
    model = GpuModel(config, source, gpu_kernels("reference"), "f32")
    tensors = load_file(folder / "model.safetensors").values()
    turns = 2 * config.context_max * config.head_dim // 2
    assert model.weights_bytes == 4 * (sum(tensor.numel() for tensor in tensors) + turns)


def test_codes_of_the_file_are_of_another_class_than_those_that_were_made_here(tmp_path):
    _, config, source = open_model(write_coded(tmp_path, random_model("llama-3"), "awq"))
    kernels = gpu_kernels("reference")
    own, made = (GpuModel(config, source, kernels, each).signature for each in ("auto", "q4"))
    assert own != made
