"""Tensors as they lie in files: memory-mapped until they are asked for, each checked before.

They come out as float32, as the bytes that the file holds, as the blocks of a GGUF file, or as the
codes of an 8-bit or 4-bit checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from firstlight.shared.errors import ConfigError
from firstlight.shared.model_files import TensorEntry, TensorFile

Floats: TypeAlias = NDArray[np.float32]
Bytes: TypeAlias = NDArray[np.uint8]

FLOAT_TYPES = ("F32", "F16", "BF16")
_LONG_ROW_BYTES = 64 << 10
_BLOCK_FLOATS = {"Q4_0": 1, "Q4_1": 2, "Q8_0": 1}
"""Types of blocks that kernels can take as they are → halves that a block begins with."""
_CODE_TYPES: dict[str, type[np.generic]] = {"F8_E4M3": np.uint8, "I32": np.uint32}


@dataclass(frozen=True)
class Blocks:
    """A matrix of quantized blocks of 32 weights."""

    type: str
    """Q4_0, Q4_1 or Q8_0 of GGML."""
    rows: Bytes
    """[outputs, bytes a row]."""
    inputs: int
    """Weights a row."""


@dataclass(frozen=True)
class Mapped:
    """A tensor of floats as it lies in its file: nothing was copied, and no value looked at."""

    path: Path
    name: str
    type: str
    """F32, F16 or BF16."""
    rows: Bytes
    """[first dimension, bytes a row]: a view of the mapping."""


@dataclass(frozen=True)
class Codes:
    """A matrix as codes: weight = (code − zero) · scale of its output and group of inputs."""

    form: str
    """int8, fp8 (e4m3) or int4."""
    codes: Bytes
    """[outputs, inputs], a byte a code; those of int4 are below 16."""
    scales: Floats
    """[outputs, groups]."""
    zeros: Bytes | None = None
    """int4: [outputs, groups]."""


class Tensors:
    """The tensors of a file, or of all shards of a model."""

    def __init__(self, path: Path, files: Sequence[TensorFile]) -> None:
        """`path` is for errors. Raises `ConfigError` for a name that two files have."""
        self.path = path
        self.entries: dict[str, TensorEntry] = {}
        self._files: dict[str, Path] = {}
        self._mapped: dict[Path, Bytes] = {}
        for file in files:
            for name, entry in file.tensors.items():
                if name in self.entries:
                    raise ConfigError(f"{file.path}: tensor {name!r} is in another shard too")
                self.entries[name] = entry
                self._files[name] = file.path

    def expect(
        self, name: str, *shapes: tuple[int, ...], types: Sequence[str] | None = FLOAT_TYPES
    ) -> TensorEntry:
        """The entry of this name; raises `ConfigError` if there is none, or not as it must be.

        `types` None: any that the file's format knows.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise ConfigError(f"{self.path}: tensor {name!r} is missing")
        if entry.shape not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise ConfigError(
                f"{self.path}: tensor {name!r} is {list(entry.shape)}, "
                f"the configuration asks for {wanted}"
            )
        if types is not None and entry.type not in types:
            raise ConfigError(
                f"{self.path}: tensor {name!r} is of type {entry.type}, the configuration asks for "
                f"{' or '.join(types)}"
            )
        return entry

    def floats(self, name: str) -> Floats:
        """A new array; raises `ConfigError` if a value is not finite."""
        # `dequantize` works on 16 rows at a time, so rows are joined to few long ones.
        entry = self.entries[name]
        rows = max(1, entry.shape[0]) if len(entry.shape) > 1 else 1
        while rows % 2 == 0 and entry.size_bytes // rows < _LONG_ROW_BYTES:
            rows //= 2
        raw = self._bytes(entry).reshape(rows, -1)
        values = np.array(dequantize(raw, GGMLQuantizationType[entry.type]), dtype=np.float32)
        self.check_finite(name, values)
        return values.reshape(entry.shape)

    def mapped(self, name: str) -> Mapped | None:
        """The same as the file has it; None where it holds something else than floats."""
        entry = self.entries[name]
        if entry.type not in FLOAT_TYPES:
            return None
        rows = self._bytes(entry).reshape(entry.shape[0], -1)
        return Mapped(self._files[name], name, entry.type, rows)

    def codes(self, name: str) -> NDArray[Any]:
        """Bytes of 8-bit floats, or words of packed codes: a view of the mapping."""
        entry = self.entries[name]
        raw = self._bytes(entry)
        if entry.offset % 4 and entry.type == "I32":
            raw = raw.copy()  # a view of words must begin at one
        return raw.view(_CODE_TYPES[entry.type]).reshape(entry.shape)

    def blocks(self, name: str) -> Blocks | None:
        """The same as blocks; None where the file holds something else."""
        entry = self.entries[name]
        if entry.type not in _BLOCK_FLOATS:
            return None
        raw = self._bytes(entry)
        blocks = raw.reshape(prod(entry.shape) // 32, -1)
        leading = np.ascontiguousarray(blocks[:, : 2 * _BLOCK_FLOATS[entry.type]])
        self.check_finite(name, leading.view(np.float16))
        return Blocks(entry.type, raw.reshape(entry.shape[0], -1), entry.shape[1])

    def block_codes(self, name: str) -> Codes | None:
        """Blocks of 4 or 8 bits as codes; None for other blocks, and where a block has a least
        value in the place of a zero."""
        found = self.blocks(name)
        if found is None or found.type == "Q4_1":
            return None
        blocks = found.rows.reshape(len(found.rows), found.inputs // 32, -1)
        scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32)
        held = blocks[..., 2:]
        if found.type == "Q8_0":
            return Codes("int8", held.reshape(len(blocks), -1), scales)
        codes = np.concatenate((held & 15, held >> 4), -1).reshape(len(blocks), -1)
        return Codes("int4", codes, scales, np.full(scales.shape, 8, np.uint8))

    def check_finite(self, name: str, values: NDArray[Any]) -> None:
        """Raises `ConfigError`."""
        if not np.isfinite(values).all():
            raise ConfigError(f"{self.path}: tensor {name!r} holds values that are not finite")

    def _bytes(self, entry: TensorEntry) -> Bytes:
        path = self._files[entry.name]
        if path not in self._mapped:
            self._mapped[path] = np.memmap(path, np.uint8, "r")
        # A plain view: numpy's memmap class makes every slice dear.
        return np.asarray(self._mapped[path][entry.offset : entry.offset + entry.size_bytes])
