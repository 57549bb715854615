"""Tensors of a model by one set of names, whichever kind of file they lie in.

Every shape is compared with the configuration before a byte is read. Data stay memory-mapped until
a tensor is asked for, and come out as float32, as the file has them, or as blocks or codes of
quantized weights.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstlight.shared.engine.model.config import ModelConfig
from firstlight.shared.engine.model.families import BY_NAME
from firstlight.shared.engine.model.quantized import (
    Float8Matrix,
    Int4Matrix,
    Quantization,
    find_quantized,
)
from firstlight.shared.engine.model.tensors import Blocks, Codes, Floats, Mapped, Tensors
from firstlight.shared.errors import ConfigError
from firstlight.shared.model_files import TensorFile, read_json, read_safetensors

__all__ = [
    "FORMATS",
    "Blocks",
    "Codes",
    "Floats",
    "Mapped",
    "Weights",
    "weights_from_folder",
    "weights_from_gguf",
]

FORMATS = ("auto", "q4", "q8", "bf16", "f32")
"""In which a model can be placed; see `model.weights` of a core's settings."""
_GGUF_NAMES = {
    "embedding": "token_embd.weight",
    "head": "output.weight",
    "norm": "output_norm.weight",
    "attention_norm": "blk.{}.attn_norm.weight",
    "q": "blk.{}.attn_q.weight",
    "k": "blk.{}.attn_k.weight",
    "v": "blk.{}.attn_v.weight",
    "q_bias": "blk.{}.attn_q.bias",
    "k_bias": "blk.{}.attn_k.bias",
    "v_bias": "blk.{}.attn_v.bias",
    "q_norm": "blk.{}.attn_q_norm.weight",
    "k_norm": "blk.{}.attn_k_norm.weight",
    "o": "blk.{}.attn_output.weight",
    "mlp_norm": "blk.{}.ffn_norm.weight",
    "gate": "blk.{}.ffn_gate.weight",
    "up": "blk.{}.ffn_up.weight",
    "down": "blk.{}.ffn_down.weight",
}
_JSON_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "head": "lm_head.weight",
    "norm": "model.norm.weight",
    "attention_norm": "model.layers.{}.input_layernorm.weight",
    "q": "model.layers.{}.self_attn.q_proj.weight",
    "k": "model.layers.{}.self_attn.k_proj.weight",
    "v": "model.layers.{}.self_attn.v_proj.weight",
    "q_bias": "model.layers.{}.self_attn.q_proj.bias",
    "k_bias": "model.layers.{}.self_attn.k_proj.bias",
    "v_bias": "model.layers.{}.self_attn.v_proj.bias",
    "q_norm": "model.layers.{}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{}.self_attn.k_norm.weight",
    "o": "model.layers.{}.self_attn.o_proj.weight",
    "mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
    "gate": "model.layers.{}.mlp.gate_proj.weight",
    "up": "model.layers.{}.mlp.up_proj.weight",
    "down": "model.layers.{}.mlp.down_proj.weight",
}
_GLOBAL = ("embedding", "head", "norm")
_MATRICES = ("gate", "up", "down")
"""Of a gated product: our names of what the families with experts name in their own way."""
_HASH_CHUNK_BYTES = 8 << 20


def _no_blocks(name: str, layer: int) -> Blocks | None:
    return None


def _not_mapped(name: str, layer: int) -> Mapped | None:
    return None


def _not_coded(name: str, layer: int) -> Codes | None:
    return None


@dataclass(frozen=True)
class Weights:
    """The tensors that a model needs, all there and of the right shape."""

    files: tuple[Path, ...]
    read: Callable[[str, int], Floats]
    """(our name, layer; 0 for those outside of layers) → a new float32 array. The matrices of
    expert 5 are gate.5, up.5 and down.5."""
    blocks: Callable[[str, int], Blocks | None] = _no_blocks
    """The same as blocks; None where the file holds something else."""
    mapped: Callable[[str, int], Mapped | None] = _not_mapped
    """The same as the file has it; None where that is not floats, or in another order."""
    coded: Callable[[str, int], Codes | None] = _not_coded
    """The same as codes that kernels on a GPU take; None where there are none such."""

    def digest(self) -> str:
        """BLAKE2b-128 over the bytes of all files, in the order of their names."""
        total = blake2b(digest_size=16)
        for path in sorted(self.files):
            with path.open("rb") as file:
                while chunk := file.read(_HASH_CHUNK_BYTES):
                    total.update(chunk)
        return total.hexdigest()


def weights_from_gguf(file: TensorFile, config: ModelConfig) -> Weights:
    """Llama files hold q and k with each head's rows interleaved for another form of rotary
    embedding; they are put back into halves here."""
    tensors = Tensors(file.path, [file])
    names = {}
    for name, layer, shape in expected_tensors(config, len(tensors.entries), file.path):
        names[name, layer] = _GGUF_NAMES[name].format(layer)
        tensors.expect(names[name, layer], shape, types=None)
    heads = {"q": config.heads, "k": config.kv_heads, "q_bias": config.heads}
    heads["k_bias"] = config.kv_heads
    if config.architecture != "llama":
        heads = {}

    def read(name: str, layer: int) -> Floats:
        values = tensors.floats(names[name, layer])
        return _in_halves(values, heads[name]) if name in heads else values

    def blocks(name: str, layer: int) -> Blocks | None:
        found = tensors.blocks(names[name, layer])
        if found is None or name not in heads:
            return found
        return Blocks(found.type, _in_halves(found.rows, heads[name]), found.inputs)

    def mapped(name: str, layer: int) -> Mapped | None:
        return None if name in heads else tensors.mapped(names[name, layer])

    def coded(name: str, layer: int) -> Codes | None:
        found = tensors.block_codes(names[name, layer])
        if found is None or name not in heads:
            return found
        count, zeros = heads[name], found.zeros
        return Codes(
            found.form,
            _in_halves(found.codes, count),
            _in_halves(found.scales, count),
            None if zeros is None else _in_halves(zeros, count),
        )

    return Weights((file.path,), read, blocks, mapped, coded)


def weights_from_folder(
    folder: Path, config: ModelConfig, quantization: Quantization | None = None
) -> Weights:
    """From `model.safetensors`, or the shards named in `model.safetensors.index.json`."""
    paths = _shards(folder)
    tensors = Tensors(folder, [read_safetensors(path) for path in paths])
    held: dict[tuple[str, int], str | Float8Matrix | Int4Matrix] = {}
    for name, layer, shape in expected_tensors(config, len(tensors.entries), folder):
        theirs = _json_name(config, name, layer)
        quantized = None
        if quantization is not None and len(shape) == 2:
            base = theirs.removesuffix(".weight")
            quantized = find_quantized(quantization, tensors, base, shape)
        if quantized is None:
            tensors.expect(theirs, shape)
        held[name, layer] = quantized or theirs

    def read(name: str, layer: int) -> Floats:
        found = held[name, layer]
        return tensors.floats(found) if isinstance(found, str) else found.floats()

    def blocks(name: str, layer: int) -> Blocks | None:
        found = held[name, layer]
        return None if isinstance(found, str) else found.blocks()

    def mapped(name: str, layer: int) -> Mapped | None:
        found = held[name, layer]
        return tensors.mapped(found) if isinstance(found, str) else None

    def coded(name: str, layer: int) -> Codes | None:
        found = held[name, layer]
        return None if isinstance(found, str) else found.coded()

    return Weights(tuple(paths), read, blocks, mapped, coded)


def expected_tensors(
    config: ModelConfig, count: int, path: Path
) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """(our name, layer, shape) of all that a model with this configuration has.

    Raises:
        ConfigError: files of `count` tensors cannot hold even one a layer.

    """
    if config.layers > count:  # bounds the loops by what the file really holds
        raise ConfigError(f"{path}: {config.layers} layers but only {count} tensors")
    for layer in range(config.layers):
        for name, shape in expected_shapes(config, layer).items():
            if layer == 0 or name not in _GLOBAL:
                yield name, layer, shape


def expected_shapes(config: ModelConfig, layer: int = 0) -> dict[str, tuple[int, ...]]:
    """Our name → shape, of every tensor outside of layers and in this layer."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    hidden, wide = config.hidden, config.intermediate
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (config.vocab, hidden),
        "norm": (hidden,),
        "attention_norm": (hidden,),
        "q": (q, hidden),
        "k": (kv, hidden),
        "v": (kv, hidden),
        "o": (hidden, q),
        "mlp_norm": (hidden,),
    }
    ends = [""]
    if config.experts is not None and config.has_experts(layer):
        wide = config.experts.intermediate
        shapes["router"] = (config.experts.count, hidden)
        ends = [f".{expert}" for expert in range(config.experts.count)]
    for end in ends:
        shapes[f"gate{end}"] = shapes[f"up{end}"] = (wide, hidden)
        shapes[f"down{end}"] = (hidden, wide)
    if not config.tied:
        shapes["head"] = (config.vocab, hidden)
    if config.qkv_bias:
        shapes |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if config.qk_norm:
        shapes |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    return shapes


def _json_name(config: ModelConfig, name: str, layer: int) -> str:
    if name in _JSON_NAMES:
        return _JSON_NAMES[name].format(layer)
    keys = BY_NAME[config.architecture].experts
    assert keys is not None, name
    block = keys.block.format(layer)
    if name == "router":
        return f"{block}.gate.weight"
    matrix, expert = name.split(".")
    return f"{block}.experts.{expert}.{keys.matrices[_MATRICES.index(matrix)]}.weight"


def _in_halves(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """[rows, …] with the rows of each head, interleaved in pairs, put into halves."""
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ConfigError(f"{index}: weight_map is missing")
    names = sorted({str(name) for name in places.values()})
    for name in names:
        if Path(name).name != name:
            raise ConfigError(f"{index}: shard {name!r} is not a plain file name")
    return [folder / name for name in names]
