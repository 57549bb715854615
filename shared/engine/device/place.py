"""Weights on a GPU, tensor by tensor, from where they lie in their files.

A tensor of floats goes there as its file has it, a piece at a time, and becomes another kind of
number only on the device; codes go as codes where kernels have their form (decision 0020). So the
host holds one tensor at most, and only of a file whose numbers have to be worked out.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TypeAlias

import torch
from torch import Tensor

from firstlight.kernels.gpu.kernels import GpuKernels
from firstlight.kernels.matrix import Matrix, pack_int4, quantize_matrix
from firstlight.shared.engine.model.config import ModelConfig
from firstlight.shared.engine.model.weights import Codes, Mapped, Weights, expected_shapes
from firstlight.shared.errors import ConfigError

PIECE_BYTES = 64 << 20
"""Of a tensor that is on its way."""
_GROUP = 32
"""Inputs that share a scale in q4."""
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_CODES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": torch.uint8}
_QUANTIZED = {"q4": ("int4", _GROUP), "q8": ("int8", None)}
Names: TypeAlias = Sequence[Sequence[str]]
"""Of the parts whose outputs are joined to a matrix: of one matrix, or of one for each expert."""


class Placer:
    """Puts the tensors of a model on a device, and keeps count."""

    def __init__(
        self, config: ModelConfig, source: Weights, kernels: GpuKernels, weight_format: str
    ) -> None:
        self._config, self._source, self._kernels = config, source, kernels
        self._format = weight_format
        self.dtype = torch.float32 if weight_format == "f32" else torch.bfloat16
        """Of the rows of a step, and of weights that are floats."""
        self.forms: set[str] = set()
        """What matrices are made of: floats, codes as their file has them, or the format that they
        were brought to here. Codes of one form can be different numbers."""
        self.bytes = 0

    def vector(self, *names: str, layer: int = 0) -> Tensor:
        """float32: norms and biases, joined."""
        with self._room(names, layer):
            parts = [torch.from_numpy(self._source.read(name, layer)) for name in names]
            made = torch.cat(parts).to(self._kernels.device)
        self.bytes += made.nbytes
        return made

    def floats(self, *names: str, layer: int = 0) -> Tensor:
        """[outputs, inputs] of the rows' dtype, whatever the file has."""
        with self._room(names, layer):
            made = self._floats([names], layer, self.dtype)[0]
        self.bytes += made.nbytes
        return made

    def matrix(self, *names: str, layer: int = 0) -> Matrix:
        """One matrix of several of the file, in the form that was asked for."""
        return self._matrix([names], layer, stacked=False)

    def experts(self, names: Names, layer: int) -> Matrix:
        """One for each expert, all in one form."""
        return self._matrix(names, layer, stacked=True)

    def _matrix(self, names: Names, layer: int, *, stacked: bool) -> Matrix:
        with self._room(names[0], layer):
            made = self._coded(names, layer) if self._format == "auto" else None
            own = self._format if made is None else made.form
            if made is None:
                made = self._of_floats(names, layer)
        self.forms.add(_word(self.dtype) if made.form == "float" else own)
        self.bytes += made.nbytes
        if stacked:
            return made
        scales = None if made.scales is None else made.scales[0]
        return Matrix(
            made.form, made.codes[0], scales, None if made.zeros is None else made.zeros[0]
        )

    def _of_floats(self, names: Names, layer: int) -> Matrix:
        form, group = _QUANTIZED.get(self._format, ("float", None))
        if names[0][0] in ("head", "router"):  # their errors go straight to what is chosen
            form, group = "float", None
        values = self._floats(names, layer, self.dtype if form == "float" else torch.float32)
        if group is not None and values.shape[-1] % group:
            raise ConfigError(
                f"weights {self._format!r}: {names[0][0]} has {values.shape[-1]} inputs, expected "
                f"a multiple of {group}"
            )
        return quantize_matrix(values, form, group)

    def _floats(self, names: Names, layer: int, dtype: torch.dtype) -> Tensor:
        """[matrices, outputs, inputs], the parts of each filled one after another."""
        shapes = expected_shapes(self._config, layer)
        outputs, inputs = sum(shapes[name][0] for name in names[0]), shapes[names[0][0]][1]
        made = torch.empty(len(names), outputs, inputs, dtype=dtype, device=self._kernels.device)
        for matrix, parts in zip(made, names, strict=True):
            row = 0
            for name in parts:
                target = matrix[row : row + shapes[name][0]]
                found = self._source.mapped(name, layer)
                if found is None:
                    target.copy_(torch.from_numpy(self._source.read(name, layer)))
                else:
                    self._fill(target, found)
                row += len(target)
        return made

    def _fill(self, target: Tensor, found: Mapped) -> None:
        for rows, piece in _pieces(found):
            there = piece.to(self._kernels.device)
            if not there.isfinite().all():
                raise ConfigError(
                    f"{found.path}: tensor {found.name!r} holds values that are not finite"
                )
            target[rows] = there.view(-1, *target.shape[1:])

    def _coded(self, names: Names, layer: int) -> Matrix | None:
        """As the file holds them; None if it holds floats, or parts of more than one form."""
        kind, places = None, []
        for name in chain.from_iterable(names):
            found = self._source.coded(name, layer)
            if found is None:
                return None
            own = (found.form, found.codes.shape[1] // found.scales.shape[1])
            if kind not in (None, own):
                return None
            kind = own
            self._check(found.form)
            places.append(self._place(found))
        assert kind is not None
        codes, scales, zeros = zip(*places, strict=True)
        parts = len(names[0])
        held = None if zeros[0] is None else _joined(zeros, parts)
        return Matrix(kind[0], _joined(codes, parts), _joined(scales, parts), held)

    def _place(self, found: Codes) -> tuple[Tensor, Tensor, Tensor | None]:
        device = self._kernels.device
        with _read_only():
            codes, scales = torch.from_numpy(found.codes), torch.from_numpy(found.scales)
            zeros = None if found.zeros is None else torch.from_numpy(found.zeros)
            there = codes.to(device)
        if found.form == "int4":
            there = pack_int4(there, codes.shape[1] // scales.shape[1])
        else:
            there = there.contiguous().view(_CODES[found.form])
        return there, scales.to(device), None if zeros is None else zeros.to(device)

    def _check(self, form: str) -> None:
        try:
            self._kernels.check_weights(form)
        except ValueError as error:
            raise ConfigError(f"weights 'auto': {error}; weights 'bf16' run there") from error

    @contextmanager
    def _room(self, names: Sequence[str], layer: int) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"no memory on {self._kernels.device} for {', '.join(names)} of layer {layer}, "
                f"after {self.bytes / 1e9:,.2f} GB of weights"
            ) from error


def _pieces(found: Mapped) -> Iterator[tuple[slice, Tensor]]:
    """(rows, their numbers as the file has them), views of the mapping."""
    count, width = found.rows.shape
    height = max(1, PIECE_BYTES // max(width, 1))
    for start in range(0, count, height):
        rows = slice(start, min(start + height, count))
        with _read_only():
            piece = torch.from_numpy(found.rows[rows].reshape(-1))
        yield rows, piece.view(_DTYPES[found.type])


def _joined(places: Sequence[Tensor], parts: int) -> Tensor:
    """[matrices, outputs, …] of what follows each other, `parts` a matrix."""
    each = [
        torch.cat(tuple(places[first : first + parts])) for first in range(0, len(places), parts)
    ]
    return torch.stack(each)


@contextmanager
def _read_only() -> Iterator[None]:
    """torch says of memory that cannot be written that it cannot be written."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        yield


def _word(dtype: torch.dtype) -> str:
    return "f32" if dtype == torch.float32 else "bf16"
