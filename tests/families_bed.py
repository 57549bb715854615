"""Small random checkpoints of every family, written as transformers writes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as BpeTokenizer
from tokenizers import models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCAB = 160
_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 7,
    "bos_token_id": 1,
    "tie_word_embeddings": False,
}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 1_000.0, "factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
_MIXTURE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

Case = tuple[Callable[..., Any], Callable[..., PreTrainedModel], dict[str, Any]]
CASES: dict[str, Case] = {
    "llama-2": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 4}),
    "llama-3": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": _LLAMA3}),
    "llama-linear": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": _LINEAR}),
    "smollm2": (
        LlamaConfig,
        LlamaForCausalLM,
        {"tie_word_embeddings": True, "num_attention_heads": 3, "num_key_value_heads": 1,
         "hidden_size": 96},
    ),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen2-tied": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen2-yarn": (Qwen2Config, Qwen2ForCausalLM, {"rope_parameters": _YARN}),
    "qwen2-window": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "mistral-window": (MistralConfig, MistralForCausalLM, {"sliding_window": 20}),
    "mixtral": (MixtralConfig, MixtralForCausalLM, {"num_local_experts": 4}),
    "qwen3-moe": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        _MIXTURE | {"num_experts": 6, "norm_topk_prob": True, "head_dim": 32},
    ),
    "qwen3-moe-dense-layer": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        _MIXTURE | {"num_experts": 3, "mlp_only_layers": [0]},
    ),
}  # fmt: skip


def random_model(case: str, seed: int = 5) -> PreTrainedModel:
    """A model whose every weight matters: norms and biases are not ones and zeros."""
    config, kind, extra = CASES[case]
    torch.manual_seed(seed)
    made = kind(config(**(_SMALL | extra))).eval()
    for name, value in made.named_parameters():
        if "bias" in name or "norm" in name:
            torch.nn.init.normal_(value, mean=1.0, std=0.3)
        elif "embed" in name:  # a tied head would mostly repeat the last token
            torch.nn.init.normal_(value, std=0.05)
        elif value.dim() > 1:
            torch.nn.init.normal_(value, std=0.6 / value.shape[-1] ** 0.5)
    return made


def write_model(folder: Path, made: PreTrainedModel, shard: str = "5GB") -> Path:
    """The folder, with a tokenizer of as many tokens beside the weights."""
    made.save_pretrained(folder, max_shard_size=shard)
    bpe = BpeTokenizer(models.BPE(vocab={f"<{id}>": id for id in range(VOCAB)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel()
    bpe.save(str(folder / "tokenizer.json"))
    return folder


def some_ids(count: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (count,), generator=generator).tolist()


def their_logits(made: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return made(torch.tensor([ids])).logits[0]
