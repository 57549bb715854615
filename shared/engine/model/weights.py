"""Tensors of a model by one set of names, whichever kind of file they lie in.

Every shape is compared with the configuration before a byte is read. Data stay memory-mapped until
a tensor is asked for, and come out as float32, or as the blocks that a GGUF file holds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from firstlight.shared.engine.model.config import ModelConfig
from firstlight.shared.errors import ConfigError
from firstlight.shared.model_files import TensorEntry, TensorFile, read_json, read_safetensors

Floats: TypeAlias = NDArray[np.float32]
_LONG_ROW_BYTES = 64 << 10

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
_HASH_CHUNK_BYTES = 8 << 20


Bytes: TypeAlias = NDArray[np.uint8]
_BLOCK_FLOATS = {"Q4_0": 1, "Q4_1": 2, "Q8_0": 1}
"""Types of blocks that kernels can take as they are → halves that a block begins with."""


@dataclass(frozen=True)
class Blocks:
    """A matrix as its file holds it: quantized blocks of 32 weights."""

    type: str
    """Q4_0, Q4_1 or Q8_0 of GGML."""
    rows: Bytes
    """[outputs, bytes a row]."""
    inputs: int
    """Weights a row."""


def _no_blocks(name: str, layer: int) -> Blocks | None:
    return None


@dataclass(frozen=True)
class Weights:
    """The tensors that a model needs, all there and of the right shape."""

    files: tuple[Path, ...]
    read: Callable[[str, int], Floats]
    """(our name, layer; 0 for those outside of layers) → a new float32 array."""
    blocks: Callable[[str, int], Blocks | None] = _no_blocks
    """The same as blocks; None where the file holds something else."""

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
    entries = _select(file.path, file.tensors, _GGUF_NAMES, config)
    data = np.memmap(file.path, np.uint8, "r")
    heads = {"q": config.heads, "k": config.kv_heads, "q_bias": config.heads}
    heads["k_bias"] = config.kv_heads

    def split(name: str) -> bool:
        return config.architecture == "llama" and name in heads

    def read(name: str, layer: int) -> Floats:
        values = _floats(file.path, data, entries[name, layer])
        if split(name):
            return _in_halves(values, heads[name])
        return values

    def blocks(name: str, layer: int) -> Blocks | None:
        entry = entries[name, layer]
        if entry.type not in _BLOCK_FLOATS:
            return None
        rows = _block_rows(file.path, data, entry)
        rows = _in_halves(rows, heads[name]) if split(name) else rows
        return Blocks(entry.type, rows, entry.shape[1])

    return Weights((file.path,), read, blocks)


def weights_from_folder(folder: Path, config: ModelConfig) -> Weights:
    """From `model.safetensors`, or the shards named in `model.safetensors.index.json`."""
    tensors: dict[str, TensorEntry] = {}
    data: dict[str, NDArray[np.uint8]] = {}
    paths = _shards(folder)
    for path in paths:
        file = read_safetensors(path)
        for name, entry in file.tensors.items():
            if name in tensors:
                raise ConfigError(f"{path}: tensor {name!r} is in another shard too")
            tensors[name] = entry
        mapped: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        data.update(dict.fromkeys(file.tensors, mapped))
    entries = _select(folder, tensors, _JSON_NAMES, config)

    def read(name: str, layer: int) -> Floats:
        entry = entries[name, layer]
        return _floats(folder, data[entry.name], entry)

    return Weights(tuple(paths), read)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Our name → shape, of every tensor that a model with this configuration has."""
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
        "gate": (wide, hidden),
        "up": (wide, hidden),
        "down": (hidden, wide),
    }
    if not config.tied:
        shapes["head"] = (config.vocab, hidden)
    if config.qkv_bias:
        shapes |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if config.qk_norm:
        shapes |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    return shapes


def _select(
    path: Path,
    tensors: Mapping[str, TensorEntry],
    names: Mapping[str, str],
    config: ModelConfig,
) -> dict[tuple[str, int], TensorEntry]:
    needed = {}
    if config.layers > len(tensors):  # bounds the loop below by what the file really holds
        raise ConfigError(f"{path}: {config.layers} layers but only {len(tensors)} tensors")
    for name, shape in expected_shapes(config).items():
        for layer in range(1 if name in _GLOBAL else config.layers):
            theirs = names[name].format(layer)
            entry = tensors.get(theirs)
            if entry is None:
                raise ConfigError(f"{path}: tensor {theirs!r} is missing")
            if entry.shape != shape:
                raise ConfigError(
                    f"{path}: tensor {theirs!r} is {list(entry.shape)}, "
                    f"the configuration asks for {list(shape)}"
                )
            needed[name, layer] = entry
    return needed


def _in_halves(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """[rows, …] with the rows of each head, interleaved in pairs, put into halves."""
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _block_rows(path: Path, data: Bytes, entry: TensorEntry) -> Bytes:
    raw = np.asarray(data[entry.offset : entry.offset + entry.size_bytes])
    blocks = raw.reshape(prod(entry.shape) // 32, -1)
    leading = np.ascontiguousarray(blocks[:, : 2 * _BLOCK_FLOATS[entry.type]])
    _check_finite(path, entry, leading.view(np.float16))
    return raw.reshape(entry.shape[0], -1)


def _check_finite(path: Path, entry: TensorEntry, values: NDArray[Any]) -> None:
    if not np.isfinite(values).all():
        raise ConfigError(f"{path}: tensor {entry.name!r} holds values that are not finite")


def _floats(path: Path, data: NDArray[np.uint8], entry: TensorEntry) -> Floats:
    # `dequantize` works on 16 rows at a time, so rows are joined to few long ones; and a plain view
    # of the mapping is used, since numpy's memmap class makes every slice dear.
    rows = max(1, entry.shape[0]) if len(entry.shape) > 1 else 1
    while rows % 2 == 0 and entry.size_bytes // rows < _LONG_ROW_BYTES:
        rows //= 2
    raw = np.asarray(data[entry.offset : entry.offset + entry.size_bytes]).reshape(rows, -1)
    values = np.array(dequantize(raw, GGMLQuantizationType[entry.type]), dtype=np.float32)
    _check_finite(path, entry, values)
    return values.reshape(entry.shape)


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
