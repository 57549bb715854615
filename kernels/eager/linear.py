"""Matrix products whose rows do not depend on how many there are.

torch's own float32 `linear` picks another order of sums for one, two or three rows. oneDNN's
product with a weight that was packed beforehand keeps one order; that is checked on the very
weight before it is trusted. Where it does not exist or does not pass, rows go through torch in
tiles of one constant height.
"""

import torch
from torch import Tensor
from torch.nn import functional

ROWS_MAX = 512
"""Rows a call; more are cut, so that every height in use is one that was checked."""
_TILE = 16
_PACK_ROWS = 64
_HEIGHTS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 15, 16, 17, 24, 31, 33, 48, 65)
_CHECK_ELEMENTS_MAX = 4 << 20
"""Only weights below this are also checked at 512 rows: a vocabulary's worth would take seconds."""


class PackedLinear:
    """oneDNN float32 product with a packed weight."""

    form = "onednn-packed"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)
        self._bias = bias
        self._linear = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, inputs] → [rows, outputs]."""
        if rows.shape[0] > ROWS_MAX:
            return torch.cat([self(part) for part in torch.split(rows, ROWS_MAX)])
        result: Tensor = self._linear(rows, self._packed, self._bias, "none", [], "")
        return result


class TiledLinear:
    """torch's product in tiles of 16 rows, the last one padded with zeros."""

    form = f"tiles-{_TILE}"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = None if bias is None else bias.to(weight.dtype)

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, inputs] → [rows, outputs], float32 whatever the weight is."""
        count = rows.shape[0]
        padded = functional.pad(rows, (0, 0, 0, -count % _TILE)).to(self._weight.dtype)
        tiles = [
            functional.linear(tile, self._weight, self._bias) for tile in torch.split(padded, _TILE)
        ]
        return torch.cat(tiles)[:count].float()


def can_pack(weight: Tensor) -> bool:
    """Whether the packed product exists here for weights of this type."""
    return (
        weight.dtype == torch.float32
        and torch._C._has_mkldnn
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def rows_are_independent(linear: PackedLinear, inputs: int, outputs: int) -> bool:
    """Whether random rows give the same bits at every height tried and at another place."""
    small = inputs * outputs <= _CHECK_ELEMENTS_MAX
    heights = _HEIGHTS + ((100, 256, ROWS_MAX) if small else ())
    rows = torch.randn(max(heights), inputs, generator=torch.Generator().manual_seed(inputs))
    expected = linear(rows)
    if not all(torch.equal(linear(rows[:height]), expected[:height]) for height in heights):
        return False
    return torch.equal(linear(rows[5:50]), expected[5:50])
