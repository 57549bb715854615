"""A weight as products read it: floats, or codes with scales, for one matrix or one an expert."""

from dataclasses import dataclass

import torch
from torch import Tensor

from firstlight.kernels.checks import FLOATS, check_tensor

GROUP_MIN = 32
"""Inputs that share a scale, at least."""
_DTYPES = {
    "float": (*FLOATS, torch.float64),
    "int8": (torch.int8,),
    "fp8": (torch.float8_e4m3fn,),
    "int4": (torch.uint8,),
}


@dataclass(frozen=True)
class Matrix:
    """[outputs, inputs], or [experts, outputs, inputs].

    float: codes are the weights. int8 and fp8: weight = code · scale of its output and group of
    inputs. int4: weight = (code − zero) · scale; a byte of a group has code j in its low half and
    code j + group / 2 in its high half, so that both halves meet inputs that lie side by side.
    """

    form: str
    codes: Tensor
    """[…, outputs, inputs], int4: […, outputs, inputs / 2]."""
    scales: Tensor | None = None
    """float32 […, outputs, groups]; one group: a scale an output."""
    zeros: Tensor | None = None
    """int4: uint8 […, outputs, groups]."""

    def __post_init__(self) -> None:
        """Refuse tensors that do not belong together."""
        if self.form not in _DTYPES:
            raise ValueError(f"form is {self.form!r}, expected {', '.join(_DTYPES)}")
        if self.codes.dim() not in (2, 3):
            raise ValueError(f"codes are {list(self.codes.shape)}, expected 2 or 3 dimensions")
        check_tensor("codes", self.codes, self.codes.shape, _DTYPES[self.form])
        if 0 in self.codes.shape:
            raise ValueError(f"codes are {list(self.codes.shape)}, expected no size of 0")
        wanted = {"float": (False, False), "int4": (True, True)}.get(self.form, (True, False))
        for name, given, need in zip(
            ("scales", "zeros"), (self.scales, self.zeros), wanted, strict=True
        ):
            if (given is not None) != need:
                raise ValueError(f"{name} of a matrix of {self.form}: expected {int(need)} tensor")
        if self.scales is not None:
            self._check_groups(self.scales)

    def _check_groups(self, scales: Tensor) -> None:
        leading, device = self.codes.shape[:-1], self.codes.device
        check_tensor("scales", scales, (*leading, "groups"), (torch.float32,), device)
        groups = scales.shape[-1]
        if self.inputs % groups or (groups > 1 and self.group % GROUP_MIN):
            raise ValueError(
                f"scales have {groups} groups for {self.inputs} inputs, expected groups of a "
                f"multiple of {GROUP_MIN}"
            )
        if self.form == "int4" and (self.group % GROUP_MIN or self.group & (self.group - 1)):
            raise ValueError(f"scales have groups of {self.group}, expected 32, 64, 128 or 256")
        if self.zeros is not None:
            check_tensor("zeros", self.zeros, scales.shape, (torch.uint8,), device)

    @property
    def outputs(self) -> int:
        """Rows of one matrix."""
        return self.codes.shape[-2]

    @property
    def inputs(self) -> int:
        """Weights a row."""
        return self.codes.shape[-1] * (2 if self.form == "int4" else 1)

    @property
    def experts(self) -> int:
        """Matrices; 0: there is one, without a dimension of its own."""
        return self.codes.shape[0] if self.codes.dim() == 3 else 0

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.inputs if self.scales is None else self.inputs // self.scales.shape[-1]

    @property
    def nbytes(self) -> int:
        """Of codes, scales and zeros."""
        parts = (self.codes, self.scales, self.zeros)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)


def _grouped(values: Tensor, size: int) -> Tensor:
    """[…, n] → […, n / size, size]."""
    return values.reshape(*values.shape[:-1], -1, size)


def pack_int4(codes: Tensor, group: int) -> Tensor:
    """uint8 codes below 16 […, inputs] → two a byte […, inputs / 2], as `Matrix` has them."""
    low, high = _grouped(codes, group).chunk(2, -1)
    packed: Tensor = low | high << 4
    return packed.flatten(-2).contiguous()


def unpack_int4(packed: Tensor, group: int) -> Tensor:
    """The inverse of `pack_int4`."""
    halves = _grouped(packed, group // 2)
    return torch.cat((halves & 15, halves >> 4), -1).flatten(-2)


def quantize_matrix(weight: Tensor, form: str, group: int | None = None) -> Matrix:
    """Nearest codes of a weight […, outputs, inputs]; `group` None: a scale an output.

    int8 and fp8 are symmetric; int4 spans a group's smallest to its largest weight, 0 included.

    Raises:
        ValueError: there is no such form, or inputs are not whole groups.

    """
    if form == "float":
        return Matrix(form, weight.contiguous())
    inputs = weight.shape[-1]
    size = inputs if group is None else group
    if inputs % size:
        raise ValueError(f"group is {group}, expected a divisor of {inputs}")
    parts = _grouped(weight.float(), size)
    if form == "int4":
        low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
        scales = ((high - low) / 15).clamp(min=1e-20)
        zeros = (-low / scales).round().clamp(0, 15)
        codes = (parts / scales[..., None] + zeros[..., None]).round().clamp(0, 15)
        packed = pack_int4(codes.to(torch.uint8).flatten(-2), size)
        return Matrix(form, packed, scales, zeros.to(torch.uint8))
    largest = 127.0 if form == "int8" else 448.0
    scales = (parts.abs().amax(-1) / largest).clamp(min=1e-20)
    values = parts / scales[..., None]
    codes = values.round().to(torch.int8) if form == "int8" else values.to(torch.float8_e4m3fn)
    return Matrix(form, codes.flatten(-2).contiguous(), scales)
