"""Checkpoints whose matrices are codes of 8-bit floats or of 4-bit integers with scales.

What a code stands for is the format's own; activations are not quantized here, whatever the
checkpoint says of them, so results are a little nearer to the model that it was made from.

FP8: weight = code · scale; one scale a matrix, an output, or a block of it. `weight_scale_inv` is
the scale too, in spite of its name. AWQ ("gemm") and GPTQ: weight = (code − zero) · scale of its
output and group of inputs; both files hold the matrix transposed, eight codes a word. AWQ packs
outputs, in the order 0 2 4 6 1 3 5 7, GPTQ packs inputs in order and stores the zero less one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstlight.shared.engine.model.entries import Entries
from firstlight.shared.engine.model.tensors import Blocks, Codes, Floats, Tensors
from firstlight.shared.errors import ConfigError

METHODS = ("fp8", "fbgemm_fp8", "compressed-tensors", "awq", "gptq")
_WORD_CODES = 8
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word the code of each of eight outputs is."""
_BLOCK = 32
_GROUPS = (32, 64, 128, 256)
"""Inputs that share a scale, where kernels on a GPU take 4-bit codes as they are."""


@dataclass(frozen=True)
class Quantization:
    """What a `quantization_config` says."""

    method: str
    """fp8, awq or gptq."""
    block: tuple[int, int] | None = None
    """fp8: outputs and inputs that share a scale, where blocks do."""
    group: int = 0
    """int4: inputs that share a scale; 0: all."""
    zero_offset: int = 0
    """int4: what is added to a zero of the file."""


def quantization_from_json(entries: Entries) -> Quantization | None:
    """Of a `config.json`; raises `ConfigError` that names what is not supported."""
    given = entries.inner("quantization_config", "compression_config")
    if not given.raw:
        return None
    method = given.text("quant_method")
    if method not in METHODS:
        raise given.wrong("quant_method", f"one of {', '.join(METHODS)}")
    if method == "compressed-tensors":
        return _compressed(given)
    if method in ("fp8", "fbgemm_fp8"):
        if given.text("fmt", "e4m3") != "e4m3":
            raise given.wrong("fmt", "e4m3")
        return Quantization("fp8", _block(given, "weight_block_size"))
    if given.size("bits") != 4:
        raise given.wrong("bits", "4")
    return _awq(given) if method == "awq" else _gptq(given)


@dataclass(frozen=True)
class Float8Matrix:
    """Codes of float8 (e4m3) with scales."""

    tensors: Tensors
    name: str
    scale: str
    block: tuple[int, int] | None

    def floats(self) -> Floats:
        """[outputs, inputs]; raises `ConfigError` if a value is not finite."""
        codes = self.tensors.codes(self.name)
        values: Floats = _FLOAT8[codes]
        self.tensors.check_finite(self.name, values)
        scale = self.tensors.floats(self.scale)
        if self.block is None:
            values *= scale.reshape(-1, 1)
            return values
        rows, columns = (
            np.arange(size) // one for size, one in zip(codes.shape, self.block, strict=True)
        )
        values *= scale[rows][:, columns]
        return values

    def blocks(self) -> Blocks | None:
        """None: no kernel on a CPU takes 8-bit floats."""
        return None

    def coded(self) -> Codes | None:
        """The codes with a scale for each output and group of inputs, each as often as it holds for
        one; None if inputs are not whole groups that kernels take."""
        codes = self.tensors.codes(self.name)
        scale = self.tensors.floats(self.scale)
        self.tensors.check_finite(self.name, _FLOAT8[np.unique(codes)])
        if self.block is None:
            scales = np.broadcast_to(scale.reshape(-1, 1), (len(codes), 1))
        elif codes.shape[1] % self.block[1] or self.block[1] % _BLOCK:
            return None
        else:
            scales = scale[np.arange(len(codes)) // self.block[0]]
        return Codes("fp8", codes, np.ascontiguousarray(scales))


@dataclass(frozen=True)
class Int4Matrix:
    """Codes of four bits, with a scale and a zero for each output and group of inputs."""

    tensors: Tensors
    base: str
    form: Quantization

    def floats(self) -> Floats:
        """[outputs, inputs]."""
        codes, scales, zeros, groups = self._parts()
        values: Floats = codes.astype(np.float32)
        values -= zeros[:, groups]
        values *= scales[:, groups]
        return values

    def blocks(self) -> Blocks | None:
        """The same codes as Q4_1, whose least value is rounded to a half; None if groups are not
        runs of whole blocks of 32 inputs."""
        codes, scales, zeros, groups = self._parts()
        outputs, inputs = codes.shape
        if inputs % _BLOCK or self.tensors.entries[f"{self.base}.scales"].type != "F16":
            return None
        of_block = groups.reshape(-1, _BLOCK)
        if (of_block != of_block[:, :1]).any():
            return None
        scales, zeros = scales[:, of_block[:, 0]], zeros[:, of_block[:, 0]]
        with np.errstate(over="ignore"):
            leading = np.stack((scales, -scales * zeros), -1).astype(np.float16)
        if not np.isfinite(leading).all():
            return None
        halves = codes.reshape(outputs, -1, 2, _BLOCK // 2)
        packed = halves[:, :, 0] | halves[:, :, 1] << 4
        rows = np.concatenate((leading.view(np.uint8), packed), -1)
        return Blocks("Q4_1", rows.reshape(outputs, -1), inputs)

    def coded(self) -> Codes | None:
        """The same codes, scales and zeros; None if groups are not runs of 32, 64, 128 or 256."""
        codes, scales, zeros, groups = self._parts()
        size = codes.shape[1] // scales.shape[1]
        if size not in _GROUPS or (groups != np.arange(codes.shape[1]) // size).any():
            return None
        return Codes("int4", codes, scales, np.ascontiguousarray(zeros.astype(np.uint8)))

    def _parts(self) -> tuple[Any, Floats, NDArray[np.int16], NDArray[np.int64]]:
        """Codes uint8 [outputs, inputs], scales and zeros [outputs, groups], each input's group."""
        base, tensors = self.base, self.tensors
        words = tensors.codes(f"{base}.qweight")
        zeros = _unpacked(tensors.codes(f"{base}.qzeros"))
        if self.form.method == "awq":
            codes = _unpacked(words)[..., _AWQ_PLACES].reshape(len(words), -1)
            zeros = zeros[..., _AWQ_PLACES]
        else:
            codes = _unpacked(words).swapaxes(1, 2).reshape(-1, words.shape[1])
        inputs = len(codes)
        scales = tensors.floats(f"{base}.scales")
        groups = np.arange(inputs) // (inputs // len(scales))
        if f"{base}.g_idx" in tensors.entries:
            groups = tensors.codes(f"{base}.g_idx").astype(np.int64)
            if groups.max() >= len(scales):
                raise ConfigError(
                    f"{tensors.path}: tensor '{base}.g_idx' names group {groups.max()} of "
                    f"{len(scales)}"
                )
        shifted = zeros.reshape(len(scales), -1).astype(np.int16) + self.form.zero_offset
        return (np.ascontiguousarray(codes.T), np.ascontiguousarray(scales.T), shifted.T, groups)


def find_quantized(
    form: Quantization, tensors: Tensors, base: str, shape: Sequence[int]
) -> Float8Matrix | Int4Matrix | None:
    """The matrix [outputs, inputs] called `base`, if it is stored as codes.

    Raises:
        ConfigError: a part of it is missing, or of another shape or type than it must be.

    """
    outputs, inputs = shape
    if form.method == "fp8":
        return _find_float8(form, tensors, base, outputs, inputs)
    if f"{base}.qweight" not in tensors.entries:
        return None
    group = form.group or inputs
    if inputs % group or outputs % _WORD_CODES or inputs % _WORD_CODES:
        raise ConfigError(
            f"{tensors.path}: {base} is {outputs} × {inputs}, not whole groups of {group} and "
            f"words of {_WORD_CODES} codes"
        )
    packed = (inputs, outputs // 8) if form.method == "awq" else (inputs // 8, outputs)
    tensors.expect(f"{base}.qweight", packed, types=("I32",))
    tensors.expect(f"{base}.qzeros", (inputs // group, outputs // 8), types=("I32",))
    tensors.expect(f"{base}.scales", (inputs // group, outputs))
    if f"{base}.g_idx" in tensors.entries:
        tensors.expect(f"{base}.g_idx", (inputs,), types=("I32",))
    return Int4Matrix(tensors, base, form)


def _find_float8(
    form: Quantization, tensors: Tensors, base: str, outputs: int, inputs: int
) -> Float8Matrix | None:
    name = f"{base}.weight"
    entry = tensors.entries.get(name)
    if entry is None or entry.type != "F8_E4M3":
        return None
    tensors.expect(name, (outputs, inputs), types=("F8_E4M3",))
    scale = f"{base}.weight_scale_inv"
    if scale not in tensors.entries:
        scale = f"{base}.weight_scale"
    if form.block is not None:
        tensors.expect(scale, _blocks_of((outputs, inputs), form.block))
    else:
        tensors.expect(scale, (), (1,), (outputs,), (outputs, 1))
    return Float8Matrix(tensors, name, scale, form.block)


def _awq(given: Entries) -> Quantization:
    if given.text("version", "gemm").lower() != "gemm":
        raise given.wrong("version", "gemm")
    if not given.flag("zero_point", default=True):
        raise given.wrong("zero_point", "true")
    return Quantization("awq", group=_group(given))


def _gptq(given: Entries) -> Quantization:
    if given.raw.get("dynamic"):
        raise given.wrong("dynamic", "the same format for all matrices")
    layout = given.text("checkpoint_format", "gptq")
    if layout not in ("gptq", "gptq_v2"):
        raise given.wrong("checkpoint_format", "gptq or gptq_v2")
    return Quantization("gptq", group=_group(given), zero_offset=int(layout == "gptq"))


def _group(given: Entries) -> int:
    return 0 if given.raw.get("group_size") == -1 else given.size("group_size", 128)


def _compressed(given: Entries) -> Quantization:
    if given.text("format") != "float-quantized":
        raise given.wrong("format", "float-quantized")
    groups = given.raw.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        raise given.wrong("config_groups", "one group")
    (name,) = groups
    weights = given.inner("config_groups").inner(name).inner("weights")
    if weights.text("type", "") != "float" or weights.size("num_bits") != 8:
        raise weights.wrong("type", "float of 8 bits")
    return Quantization("fp8", _block(weights, "block_structure"))


def _block(given: Entries, key: str) -> tuple[int, int] | None:
    value = given.raw.get(key)
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(type(size) is int and size > 0 for size in value)
    ):
        raise given.wrong(key, "two sizes")
    return value[0], value[1]


def _blocks_of(shape: Sequence[int], block: tuple[int, int]) -> tuple[int, int]:
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def _unpacked(words: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Eight codes of each word, the lowest bits first: […] → […, 8]."""
    return (words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).astype(np.uint8)


def _float8_values() -> Floats:
    """What each byte stands for: sign, four bits of exponent over 7, three of fraction; no
    infinities, and 127 is NaN (arXiv 2209.05433)."""
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, byte & 7
    normal = (1 + fraction / 8) * 2.0 ** (exponent - 7)
    values = np.where(exponent == 0, fraction / 8 * 2.0**-6, normal)
    values = np.where(byte & 127 == 127, np.nan, values)
    return np.where(byte > 127, -values, values).astype(np.float32)


_FLOAT8 = _float8_values()
