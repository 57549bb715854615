"""The models whose shapes the kernels are measured and compiled at."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """What of a model decides the shapes of its kernels."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    layers: int
    experts: int
    """Of a model of the same family with experts."""
    chosen: int
    expert_intermediate: int
    prefill: int = 2048
    """Rows of a step that is one chunk of a prompt."""
    sequences: int = 64
    """Of a step that decodes."""
    context: int = 4096
    """Tokens of each of them."""


LLAMA_8B = Shape("8B", 4096, 32, 8, 128, 14_336, 128_256, 32, 8, 2, 14_336)
"""Llama 3.1 8B; the experts are Mixtral 8x7B's."""
LLAMA_70B = Shape("70B", 8192, 64, 8, 128, 28_672, 128_256, 80, 128, 8, 1536)
"""Llama 3.1 70B; the experts are as many and as wide as Qwen3-235B-A22B's."""
SHAPES = (LLAMA_8B, LLAMA_70B)
