"""The same numbers as an independent implementation: transformers, in float32."""

import json

import pytest
import torch
from cpp_kernels import cpp
from safetensors.torch import save_file
from tokenizers import Tokenizer as BpeTokenizer
from tokenizers import models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GgufConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from firstlight.kernels.cpu.extension import instruction_sets
from firstlight.shared.engine.model.batch import SequenceRows, join_rows
from firstlight.shared.engine.model.load import load_model
from firstlight.shared.errors import ConfigError
from firstlight.shared.model_files import default_model_path
from firstlight.shared.text.tokenizer import load_tokenizer

PROMPTS = ("The capital of France is", "def fibonacci(n):\n")
SMALL = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 7,
}


@pytest.fixture(scope="module")
def theirs():
    path = default_model_path()
    model = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    return model.eval()


@pytest.mark.filterwarnings("ignore")
def test_logits_of_the_default_model_agree_with_transformers(exact, theirs, prefill):
    ids = load_tokenizer(default_model_path()).encode("".join(PROMPTS), special=False)
    found = prefill(exact, exact.storage(4), ids, [2, 0, 1], last=len(ids))
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]
    # Rounding of 30 float32 layers; logits reach about 30, so this is 1e-5 of their size.
    assert (found - expected).abs().max() < 5e-4
    assert (found - expected).abs().max() > 0 or torch.equal(found, expected)


@cpp
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("weights", "divergence_max"), [("f32", 1e-5), ("bf16", 1e-3), ("auto", 0.02)]
)
def test_the_kernels_in_c_give_nearly_the_distribution_of_transformers(
    weights, divergence_max, theirs, prefill
):
    model = load_model(default_model_path(), weights=weights, kernels="cpu", threads=1)
    ids = load_tokenizer(default_model_path()).encode("".join(PROMPTS) * 3, special=False)
    found = prefill(model, model.storage(4), ids, [2, 0, 1], last=len(ids)).log_softmax(-1)
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0].log_softmax(-1)
    divergence = (expected.exp() * (expected - found)).sum(-1).mean()
    assert 0 < divergence < divergence_max


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_that_of_transformers(prompt, exact, theirs, prefill):
    tokenizer = load_tokenizer(default_model_path())
    ids = tokenizer.encode(prompt, special=False)
    kv, table, made = exact.storage(8), list(range(8)), []
    logits = prefill(exact, kv, ids, table, last=1)
    for position in range(len(ids), len(ids) + 48):
        made.append(int(logits[-1].argmax()))
        rows = SequenceRows(made[-1:], position, table, (0,))
        logits = exact.transformer.logits(join_rows([rows]), kv)
    # One causal pass of theirs over the text: each id must be their choice after those before it.
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids + made])).logits[0].argmax(-1)
    assert expected[len(ids) - 1 : -1].tolist() == made


def write_folder(folder, model):
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.architectures = [type(model).__name__]
    (folder / "config.json").write_text(model.config.to_json_string())
    bpe = BpeTokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel()
    bpe.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("config", "kind", "extra"),
    [
        (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": False}),
        (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
        (Qwen2Config, Qwen2ForCausalLM, {}),
        (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32}),
    ],
    ids=["llama", "llama-tied", "qwen2", "qwen3"],
)
@pytest.mark.parametrize(
    ("kernels", "error"),
    [("eager", 1e-4), ("reference", 1e-4), pytest.param("cpu", 3e-3, marks=cpp)],
)
def test_a_folder_gives_the_logits_of_transformers(
    kernels, error, config, kind, extra, tmp_path, prefill
):
    torch.manual_seed(5)
    theirs = kind(config(**(SMALL | extra))).eval()
    for name, value in theirs.named_parameters():
        if "bias" in name or "norm" in name:
            torch.nn.init.normal_(value, mean=1.0, std=0.3)
    write_folder(tmp_path, theirs)
    loaded = load_model(tmp_path, weights="f32", kernels=kernels, threads=1)
    ids = torch.randint(0, 320, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    found = prefill(loaded, loaded.storage(4), ids, [3, 1, 0], 16, last=40)
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]
    assert loaded.config.eos_ids == (7,)
    assert (found - expected).abs().max() < error * expected.abs().max()  # cpu: KV in halves


def test_two_formats_of_weights_are_two_numerics_classes(tmp_path):
    write_folder(tmp_path, LlamaForCausalLM(LlamaConfig(**SMALL)))
    kinds = [
        (kernels, weights) for kernels in ("eager", "reference") for weights in ("f32", "bf16")
    ]
    if instruction_sets():
        kinds += [("cpu", weights) for weights in ("q4", "q8", "f32", "bf16")]
    classes = {
        load_model(tmp_path, weights=weights, kernels=kernels, threads=1).numerics_class
        for kernels, weights in kinds
    }
    assert len(classes) == len(kinds)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"kernels": "gpu"}, "kernels 'gpu' are unknown, expected auto, cpu, eager, reference"),
        ({"weights": "int3"}, "weights 'int3' are unknown"),
        ({"kernels": "eager", "weights": "q4"}, "weights 'q4' need the C"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_an_option_that_is_unknown_is_named(options, wrong, tmp_path):
    write_folder(tmp_path, LlamaForCausalLM(LlamaConfig(**SMALL)))
    with pytest.raises(ConfigError, match=wrong):
        load_model(tmp_path, **options)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM' is not supported"),
        ({"hidden_size": 128}, "the configuration asks for"),
        ({"num_hidden_layers": 3}, "'model.layers.2.input_layernorm.weight' is missing"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 3}, "4 heads over 3"),
        (
            {"rope_parameters": {"rope_type": "longrope"}},
            "rope_type is 'longrope', expected a rotary",
        ),
        ({"vocab_size": 1 << 40}, "vocab_size is 1099511627776"),
        ({"eos_token_id": 320}, "end token 320 of 320"),
    ],
)
def test_a_configuration_that_does_not_fit_is_named(change, wrong, tmp_path):
    write_folder(tmp_path, LlamaForCausalLM(LlamaConfig(**SMALL)))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=wrong):
        load_model(tmp_path, threads=1)
