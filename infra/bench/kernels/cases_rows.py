"""Operations that go over rows or blocks once: norms, gate, 8-bit rows, copies of blocks."""

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn import functional

from firstlight.infra.bench.kernels.cases import Case, Prepared, Source
from firstlight.infra.bench.kernels.shapes import Shape
from firstlight.kernels import ops
from firstlight.kernels.pages import BLOCK_ROWS

_EPS = 1e-5
_MOVED = 64
"""Blocks of a call: 1,024 tokens."""
_POOL = 256


def cases(shape: Shape) -> Iterator[Case]:
    """Bound by bandwidth, all of them."""
    rows, hidden = shape.prefill, shape.hidden
    yield Case(
        "add_rms_norm",
        "bf16",
        shape.name,
        f"{rows} × {hidden}",
        4 * rows * hidden * 2,
        0,
        partial(_norm, shape),
    )
    yield Case(
        "silu_mul",
        "bf16",
        shape.name,
        f"{rows} × {shape.intermediate}",
        3 * rows * shape.intermediate * 2,
        0,
        partial(_gate, shape),
    )
    for dtype in (torch.int8, torch.float8_e4m3fn):
        yield Case(
            "quantize_rows",
            _word(dtype),
            shape.name,
            f"{rows} × {hidden}",
            rows * (3 * hidden + 4),
            0,
            partial(_quantize, shape, dtype),
        )
    block = 2 * shape.layers * shape.kv_heads * BLOCK_ROWS * shape.head_dim * 2
    for operation in ("copy_blocks", "pack_blocks", "unpack_blocks"):
        yield Case(
            operation,
            "bf16",
            shape.name,
            f"{_MOVED} blocks of {block >> 10} KiB",
            2 * _MOVED * block,
            0,
            partial(_move, shape, operation),
        )


def _norm(shape: Shape, device: torch.device) -> Prepared:
    source = Source(device)
    rows, residual = (source.floats(shape.prefill, shape.hidden) for _ in range(2))
    weight = source.floats(shape.hidden)

    def exact() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found, total = ops.add_rms_norm(rows, residual, weight, _EPS, kernels="gpu")
        eager = ops.rms_norm(total, weight, _EPS, kernels="reference")
        right = ops.rms_norm(total.double(), weight.double(), _EPS, kernels="reference")
        return found, eager, right

    return Prepared(
        lambda: ops.add_rms_norm(rows, residual, weight, _EPS, kernels="gpu"),
        exact,
        lambda: functional.rms_norm(rows + residual, (shape.hidden,), weight, _EPS),
    )


def _gate(shape: Shape, device: torch.device) -> Prepared:
    source = Source(device)
    gate_up = source.floats(shape.prefill, 2 * shape.intermediate)

    def exact() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        some = gate_up[:256]
        found = ops.silu_mul(some, kernels="gpu")
        eager = ops.silu_mul(some, kernels="reference")
        return found, eager, ops.silu_mul(some.double(), kernels="reference")

    def torchs() -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate) * up

    return Prepared(lambda: ops.silu_mul(gate_up, kernels="gpu"), exact, torchs)


def _quantize(shape: Shape, dtype: torch.dtype, device: torch.device) -> Prepared:
    source = Source(device)
    rows = source.floats(shape.prefill, shape.hidden)
    return Prepared(
        lambda: ops.quantize_rows(rows, dtype, kernels="gpu"),
        None,
        lambda: ops.quantize_rows(rows, dtype, kernels="reference"),
    )


def _move(shape: Shape, operation: str, device: torch.device) -> Prepared:
    source = Source(device)
    inner = (shape.kv_heads, BLOCK_ROWS, shape.head_dim)
    pool = source.floats(shape.layers, 2, _POOL, *inner)
    near = [2 * block for block in range(_MOVED)]
    far = [2 * block + 1 for block in range(_MOVED)]
    if operation == "copy_blocks":
        return Prepared(
            lambda: ops.copy_blocks(pool, near, far, kernels="gpu"),
            None,
            lambda: ops.copy_blocks(pool, near, far, kernels="reference"),
        )
    if operation == "pack_blocks":
        return Prepared(
            lambda: ops.pack_blocks(pool, near, kernels="gpu"),
            None,
            lambda: ops.pack_blocks(pool, near, kernels="reference"),
        )
    packed = source.floats(_MOVED, shape.layers, 2, *inner)
    return Prepared(
        lambda: ops.unpack_blocks(packed, pool, near, kernels="gpu"),
        None,
        lambda: ops.unpack_blocks(packed, pool, near, kernels="reference"),
    )


def _word(dtype: torch.dtype) -> str:
    return "int8" if dtype == torch.int8 else "fp8"
