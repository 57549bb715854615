"""What differs between the families of models, as data.

All are decoders of the same build: norm, attention over grouped heads with rotary embedding, norm,
gated product. A family says what its configuration calls things, what it has beside that build,
and what its files call the tensors.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ExpertKeys:
    """Where a family with a mixture of experts says how many there are, and how they are used."""

    count: tuple[str, ...]
    """Keys of the number of experts; the first that is there counts."""
    chosen: str
    intermediate: str
    renormalize: str = ""
    """Key of whether the weights of the chosen ones are made to sum to 1; none: they always are."""
    block: str = ""
    """Of a layer: what the names of its experts begin with."""
    matrices: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Family:
    """One architecture."""

    name: str
    """As GGUF has it."""
    json_name: str
    """As `config.json` has it."""
    qkv_bias: bool = False
    qk_norm: bool = False
    window: str = ""
    """Sliding window: "always" if `sliding_window` is there, "switched" by `use_sliding_window`,
    "layers" if also `max_window_layers` or `layer_types` say which layers have it."""
    window_default: int | None = None
    """The window of a configuration without `sliding_window`."""
    experts: ExpertKeys | None = None
    gguf: bool = True
    """Whether its GGUF files can be read."""


_QWEN_EXPERTS = ExpertKeys(
    count=("num_experts", "num_local_experts"),
    chosen="num_experts_per_tok",
    intermediate="moe_intermediate_size",
    renormalize="norm_topk_prob",
    block="model.layers.{}.mlp",
)
_MIXTRAL_EXPERTS = ExpertKeys(
    count=("num_local_experts", "num_experts"),
    chosen="num_experts_per_tok",
    intermediate="intermediate_size",
    block="model.layers.{}.block_sparse_moe",
    matrices=("w1", "w3", "w2"),
)
_ALL = (
    Family("llama", "LlamaForCausalLM"),
    Family("qwen2", "Qwen2ForCausalLM", qkv_bias=True, window="layers"),
    Family("qwen3", "Qwen3ForCausalLM", qk_norm=True, window="layers"),
    Family("mistral", "MistralForCausalLM", window="always", window_default=4096, gguf=False),
    Family("mixtral", "MixtralForCausalLM", window="always", experts=_MIXTRAL_EXPERTS, gguf=False),
    Family(
        "qwen3moe",
        "Qwen3MoeForCausalLM",
        qk_norm=True,
        window="switched",
        experts=_QWEN_EXPERTS,
        gguf=False,
    ),
)
BY_NAME = {family.name: family for family in _ALL}
BY_JSON_NAME = {family.json_name: family for family in _ALL}
