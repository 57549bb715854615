"""The shape of a model, from GGUF metadata or a `config.json`.

Only what the transformer here really computes is let through: anything else (another architecture,
another way of rotary embedding or of weights) is named in the error instead of being ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from firstlight.shared.engine.model.entries import Entries
from firstlight.shared.engine.model.families import BY_JSON_NAME, BY_NAME, ExpertKeys, Family
from firstlight.shared.engine.model.rope import RopeScaling, context_of, rope_from_json
from firstlight.shared.errors import ConfigError
from firstlight.shared.model_files import TensorFile

_LAYERS_MAX = 1024
_EXPERTS_MAX = 1024
_CHOSEN_MAX = 32
SINKS_MAX = 128
_STREAM_MAX = 1 << 20
"""Positions of a text with a window and sinks."""


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in the place of the gated product."""

    count: int
    chosen: int
    """Experts that a row goes through."""
    intermediate: int
    renormalize: bool
    """Whether the weights of the chosen ones are made to sum to 1."""
    dense_layers: tuple[int, ...] = ()
    """Layers that have one gated product as other models do."""


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of one of the `families`."""

    architecture: str
    """Name of its family."""
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
    """Positions that the model can be used for."""
    tied: bool
    """The output matrix is the embedding."""
    qkv_bias: bool
    qk_norm: bool
    eos_ids: tuple[int, ...]
    rope_scaling: RopeScaling | None = None
    windows: tuple[int, ...] = ()
    """Of each layer: how many tokens a row sees, itself included; 0: all. Empty: all in each."""
    sinks: int = 0
    """First tokens of a sequence that stay visible beside the window, which all layers share."""
    experts: Experts | None = None

    @property
    def kv_values_per_token(self) -> int:
        """Numbers in the keys and values of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def window(self, layer: int) -> int:
        """How many tokens a row of this layer sees, itself included; 0: all."""
        return self.windows[layer] if self.windows else 0

    def has_experts(self, layer: int) -> bool:
        """Whether this layer has a mixture of experts."""
        return self.experts is not None and layer not in self.experts.dense_layers


def config_from_gguf(file: TensorFile) -> ModelConfig:
    """Raises `ConfigError` for a missing, absurd or unsupported entry."""
    values = Entries(file.path, file.metadata)
    architecture = values.text("general.architecture")
    family = BY_NAME.get(architecture)
    if family is None or not family.gguf:
        raise ConfigError(_unsupported(file.path, architecture))
    prefix = architecture + "."
    for key in ("rope.scaling.type", "attention.sliding_window", "expert_count"):
        if file.metadata.get(prefix + key) not in (None, "none", 0):
            raise ConfigError(f"{file.path}: {prefix + key} is not supported")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(f"{file.path}: tensor 'token_embd.weight' is missing")
    heads = values.size(prefix + "attention.head_count")
    hidden = values.size(prefix + "embedding_length")
    config = ModelConfig(
        architecture=architecture,
        layers=values.size(prefix + "block_count", most=_LAYERS_MAX),
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
        rope_scaling=_divisors(file),
    )
    turned = values.size(prefix + "rope.dimension_count", config.head_dim)
    if turned != config.head_dim:
        raise ConfigError(f"{file.path}: rotary embedding of {turned} of {config.head_dim} values")
    return _checked(file.path, config)


def config_from_json(path: Path, raw: Mapping[str, object]) -> ModelConfig:
    """From the entries of a Hugging Face `config.json`; `path` is for errors."""
    values = Entries(path, raw)
    family = _family(values)
    for key in ("mlp_bias", *(() if family.qkv_bias else ("attention_bias",))):
        if values.flag(key):
            raise values.wrong(key, f"no such biases in a {family.json_name}")
    if raw.get("hidden_act", "silu") != "silu":
        raise values.wrong("hidden_act", "silu")
    heads, hidden = values.size("num_attention_heads"), values.size("hidden_size")
    layers = values.size("num_hidden_layers", most=_LAYERS_MAX)
    theta, scaling = rope_from_json(values)
    context = context_of(values.size("max_position_embeddings"), scaling)
    return _checked(
        path,
        ModelConfig(
            architecture=family.name,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=values.size("num_key_value_heads", heads),
            head_dim=values.size("head_dim", max(hidden // heads, 1)),
            intermediate=values.size("intermediate_size"),
            vocab=values.size("vocab_size"),
            rope_theta=theta,
            rms_eps=values.number("rms_norm_eps"),
            context_max=context,
            tied=values.flag("tie_word_embeddings"),
            qkv_bias=family.qkv_bias,
            qk_norm=family.qk_norm,
            eos_ids=values.ids("eos_token_id"),
            rope_scaling=scaling,
            windows=_windows(values, family, layers, context),
            experts=_experts(values, family.experts, layers) if family.experts else None,
        ),
    )


def with_eos(config: ModelConfig, path: Path, raw: Mapping[str, object]) -> ModelConfig:
    """The same model, with the end tokens of its `generation_config.json` added."""
    more = Entries(path, raw).ids("eos_token_id")
    ids = tuple(dict.fromkeys(config.eos_ids + more))
    return _checked(path, replace(config, eos_ids=ids))


def with_sinks(config: ModelConfig, window: int, sinks: int) -> ModelConfig:
    """The same model, each layer of which sees the first `sinks` tokens and the last `window`.

    Sinks count as standing right before the window, so that no distance is longer than the two
    together and a text may be longer than any that the model was trained on (StreamingLLM,
    arXiv 2309.17453). Raises `ConfigError`.
    """
    if not 0 < sinks <= SINKS_MAX or window < 1:
        raise ConfigError(f"sinks {sinks} and window {window}, expected 1…{SINKS_MAX} and 1…")
    if config.windows:
        raise ConfigError(f"sinks: the {config.architecture} model has a window of its own")
    if sinks + window > config.context_max:
        raise ConfigError(
            f"{sinks} sinks and a window of {window} are more than the {config.context_max} "
            "positions that the model can be used for"
        )
    windows = (window,) * config.layers
    return replace(config, windows=windows, sinks=sinks, context_max=_STREAM_MAX)


def _family(values: Entries) -> Family:
    names = values.raw.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    if not isinstance(name, str) or name not in BY_JSON_NAME:
        raise ConfigError(_unsupported(values.path, name))
    return BY_JSON_NAME[name]


def _windows(values: Entries, family: Family, layers: int, context: int) -> tuple[int, ...]:
    """The sliding window of each layer; empty if none is shorter than the context."""
    switched = values.flag("use_sliding_window")
    if switched and not family.window:
        raise values.wrong("use_sliding_window", f"no sliding window in a {family.json_name}")
    if not family.window or (family.window != "always" and not switched):
        return ()
    if values.raw.get("sliding_window", family.window_default) is None:
        return ()
    window = values.size("sliding_window", family.window_default)
    if window >= context:
        return ()
    if family.window != "layers":
        return (window,) * layers
    kinds = values.raw.get("layer_types")
    if kinds is None:
        first = values.raw.get("max_window_layers")
        if type(first) is not int or first < 0:
            raise values.wrong("max_window_layers", "a number of layers")
        return tuple(window if layer >= first else 0 for layer in range(layers))
    known = {"full_attention": 0, "sliding_attention": window}
    if not isinstance(kinds, list) or len(kinds) != layers or not all(k in known for k in kinds):
        raise values.wrong("layer_types", f"{layers} of {', '.join(known)}")
    return tuple(known[kind] for kind in kinds)


def _experts(values: Entries, keys: ExpertKeys, layers: int) -> Experts:
    count_key = next((key for key in keys.count if key in values.raw), keys.count[0])
    count = values.size(count_key, most=_EXPERTS_MAX)
    every = values.size("decoder_sparse_step", 1)
    plain = values.raw.get("mlp_only_layers") or []
    if not isinstance(plain, list) or not all(type(layer) is int for layer in plain):
        raise values.wrong("mlp_only_layers", "numbers of layers")
    return Experts(
        count=count,
        chosen=values.size(keys.chosen, most=min(count, _CHOSEN_MAX)),
        intermediate=values.size(keys.intermediate),
        renormalize=values.flag(keys.renormalize) if keys.renormalize else True,
        dense_layers=tuple(x for x in range(layers) if x in plain or (x + 1) % every),
    )


def _divisors(file: TensorFile) -> RopeScaling | None:
    """Frequencies of a GGUF file that were scaled beforehand, as those of Llama 3.1 are."""
    entry = file.tensors.get("rope_freqs.weight")
    if entry is None:
        return None
    if entry.type != "F32" or len(entry.shape) != 1:
        raise ConfigError(f"{file.path}: {entry.name} is {entry.type} {list(entry.shape)}")
    values = np.fromfile(file.path, np.float32, entry.shape[0], offset=entry.offset)
    if not (np.isfinite(values) & (values > 0)).all():
        raise ConfigError(f"{file.path}: {entry.name} holds values that are not above zero")
    return RopeScaling("divisors", divisors=tuple(values.tolist()))


def _checked(path: Path, config: ModelConfig) -> ModelConfig:
    if config.heads % config.kv_heads:
        raise ConfigError(f"{path}: {config.heads} heads over {config.kv_heads} key/value heads")
    if config.head_dim % 2:
        raise ConfigError(f"{path}: head_dim is {config.head_dim}, expected an even number")
    scaling = config.rope_scaling
    if scaling is not None:
        if scaling.kind == "divisors" and len(scaling.divisors) * 2 != config.head_dim:
            raise ConfigError(f"{path}: {len(scaling.divisors)} rotary divisors")
        if scaling.kind == "yarn" and config.rope_theta <= 1:
            raise ConfigError(f"{path}: rope_theta is {config.rope_theta}, yarn needs more than 1")
    if config.eos_ids and max(config.eos_ids) >= config.vocab:
        raise ConfigError(f"{path}: end token {max(config.eos_ids)} of {config.vocab} tokens")
    return config


def _unsupported(path: Path, name: object) -> str:
    known = ", ".join([family for family in BY_NAME if BY_NAME[family].gguf] + list(BY_JSON_NAME))
    return f"{path}: architecture {str(name)[:100]!r} is not supported; supported are {known}"
