"""The shape of a model, from GGUF metadata or a `config.json`.

Only what the transformer here really computes is let through: anything else (another architecture,
scaled rotary embeddings, a sliding window) is named in the error instead of being ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from firstlight.shared.errors import ConfigError
from firstlight.shared.model_files import TensorFile

_SIZE_MAX = 1 << 24

_JSON_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
ARCHITECTURES = tuple(_JSON_ARCHITECTURES.values())


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Llama family."""

    architecture: str
    """llama, qwen2 or qwen3."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    rope_theta: float
    rms_eps: float
    context_max: int
    """Positions that the model was trained for."""
    tied: bool
    """The output matrix is the embedding."""
    qkv_bias: bool
    qk_norm: bool
    eos_ids: tuple[int, ...]

    @property
    def kv_values_per_token(self) -> int:
        """Numbers in the keys and values of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def config_from_gguf(file: TensorFile) -> ModelConfig:
    """Raises `ConfigError` for a missing, absurd or unsupported entry."""
    values = _Values(file.path, file.metadata)
    architecture = values.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ConfigError(_unsupported(file.path, architecture))
    prefix = architecture + "."
    for key in ("rope.scaling.type", "attention.sliding_window", "expert_count"):
        if file.metadata.get(prefix + key) not in (None, "none", 0):
            raise ConfigError(f"{file.path}: {prefix + key} is not supported")
    if "rope_freqs.weight" in file.tensors:
        raise ConfigError(f"{file.path}: scaled rotary frequencies are not supported")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(f"{file.path}: tensor 'token_embd.weight' is missing")
    heads = values.size(prefix + "attention.head_count")
    hidden = values.size(prefix + "embedding_length")
    config = ModelConfig(
        architecture=architecture,
        layers=values.size(prefix + "block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=values.size(prefix + "attention.head_count_kv", heads),
        head_dim=values.size(prefix + "attention.key_length", hidden // heads),
        intermediate=values.size(prefix + "feed_forward_length"),
        vocab=values.size(prefix + "vocab_size", embedding.shape[0]),
        rope_theta=values.number(prefix + "rope.freq_base", 10_000.0),
        rms_eps=values.number(prefix + "attention.layer_norm_rms_epsilon"),
        context_max=values.size(prefix + "context_length"),
        tied="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        eos_ids=values.ids("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"),
    )
    turned = values.size(prefix + "rope.dimension_count", config.head_dim)
    if turned != config.head_dim:
        raise ConfigError(f"{file.path}: rotary embedding of {turned} of {config.head_dim} values")
    return _checked(file.path, config)


def config_from_json(path: Path, raw: Mapping[str, object]) -> ModelConfig:
    """From the entries of a Hugging Face `config.json`; `path` is for errors."""
    values = _Values(path, raw)
    names = raw.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    if not isinstance(name, str) or name not in _JSON_ARCHITECTURES:
        raise ConfigError(_unsupported(path, name))
    architecture = _JSON_ARCHITECTURES[name]
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ConfigError(f"{path}: rope_parameters is {rope!r}, expected an object")
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ConfigError(f"{path}: rotary embeddings of type {rope.get('rope_type')!r}")
    if raw.get("use_sliding_window") or raw.get("mlp_bias"):
        raise ConfigError(f"{path}: use_sliding_window and mlp_bias are not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"{path}: hidden_act is {raw['hidden_act']!r}, supported is silu")
    if architecture != "qwen2" and raw.get("attention_bias"):
        raise ConfigError(f"{path}: attention_bias is supported for Qwen2ForCausalLM only")
    heads, hidden = values.size("num_attention_heads"), values.size("hidden_size")
    theta = _Values(path, {"rope_theta": rope.get("rope_theta", raw.get("rope_theta"))})
    return _checked(
        path,
        ModelConfig(
            architecture=architecture,
            layers=values.size("num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=values.size("num_key_value_heads", heads),
            head_dim=values.size("head_dim", hidden // heads),
            intermediate=values.size("intermediate_size"),
            vocab=values.size("vocab_size"),
            rope_theta=theta.number("rope_theta", 10_000.0),
            rms_eps=values.number("rms_norm_eps"),
            context_max=values.size("max_position_embeddings"),
            tied=values.flag("tie_word_embeddings"),
            qkv_bias=architecture == "qwen2",
            qk_norm=architecture == "qwen3",
            eos_ids=values.ids("eos_token_id"),
        ),
    )


def with_eos(config: ModelConfig, path: Path, raw: Mapping[str, object]) -> ModelConfig:
    """The same model, with the end tokens of its `generation_config.json` added."""
    more = _Values(path, raw).ids("eos_token_id")
    ids = tuple(dict.fromkeys(config.eos_ids + more))
    return _checked(path, replace(config, eos_ids=ids))


class _Values:
    """Entries of a mapping from outside, each checked for type and range."""

    def __init__(self, path: Path, raw: Mapping[str, object]) -> None:
        self._path = path
        self._raw = raw

    def text(self, key: str) -> str:
        value = self._raw.get(key)
        if not isinstance(value, str):
            raise ConfigError(f"{self._path}: {key} is {value!r}, expected text")
        return value[:64]

    def size(self, key: str, default: int | None = None) -> int:
        value = self._raw.get(key)
        if value is None:
            value = default
        if type(value) is not int or not 0 < value <= _SIZE_MAX:
            raise ConfigError(f"{self._path}: {key} is {value!r}, expected 1…{_SIZE_MAX}")
        return value

    def flag(self, key: str) -> bool:
        value = self._raw.get(key, False)
        if not isinstance(value, bool):
            raise ConfigError(f"{self._path}: {key} is {value!r}, expected true or false")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._raw.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
            raise ConfigError(f"{self._path}: {key} is {value!r}, expected a positive number")
        return float(value)

    def ids(self, *keys: str) -> tuple[int, ...]:
        found: list[int] = []
        for key in keys:
            value = self._raw.get(key)
            for item in value if isinstance(value, list) else [value]:
                if item is None:
                    continue
                if type(item) is not int or item < 0:
                    raise ConfigError(f"{self._path}: {key} is {value!r}, expected token ids")
                found.append(item)
        return tuple(dict.fromkeys(found))


def _checked(path: Path, config: ModelConfig) -> ModelConfig:
    if config.heads % config.kv_heads:
        raise ConfigError(f"{path}: {config.heads} heads over {config.kv_heads} key/value heads")
    if config.head_dim % 2:
        raise ConfigError(f"{path}: head_dim is {config.head_dim}, expected an even number")
    if config.eos_ids and max(config.eos_ids) >= config.vocab:
        raise ConfigError(f"{path}: end token {max(config.eos_ids)} of {config.vocab} tokens")
    return config


def _unsupported(path: Path, name: object) -> str:
    known = ", ".join([*ARCHITECTURES, *_JSON_ARCHITECTURES])
    return f"{path}: architecture {name!r} is not supported; supported are {known}"
