"""Rotary embedding and attention over pages, for a chunk of a prompt and for decoding sequences."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from firstlight.infra.bench.kernels.cases import Case, Prepared, Run, Source
from firstlight.infra.bench.kernels.shapes import Shape
from firstlight.kernels import ops
from firstlight.kernels.pages import BLOCK_ROWS, Span
from firstlight.kernels.plan import AttentionPlan, plan_attention

_CODES = {"bf16": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
_CHECKED = 2
"""Sequences of a decode that are compared with float64."""


@dataclass(frozen=True)
class _Load:
    """A step: so many sequences, each with so many rows and such a context."""

    sequences: int
    rows: int
    context: int
    window: int = 0
    sinks: int = 0

    @property
    def pairs(self) -> int:
        """Of a row and a token that it sees, in all."""
        one = 0
        for position in range(self.context - self.rows, self.context):
            seen = position + 1
            one += min(seen, self.window + min(self.sinks, seen)) if self.window else seen
        return one * self.sequences

    @property
    def read(self) -> int:
        """Tokens whose keys and values are read, once each."""
        seen = self.context
        if self.window:
            seen = min(seen, self.window + self.rows - 1 + self.sinks)
        return seen * self.sequences


def cases(shape: Shape) -> Iterator[Case]:
    """Prefill is bound by products, the others by bandwidth."""
    many = _Load(shape.sequences, 1, shape.context)
    verify = _Load(max(1, shape.sequences // 4), 8, shape.context)
    window = shape.context // 4
    for form in _CODES:
        width = shape.heads + 2 * shape.kv_heads
        written = 2 * shape.kv_heads * _token_bytes(shape, form)
        size = shape.prefill * (
            (width + shape.heads) * shape.head_dim * 2 + written + shape.head_dim * 4
        )
        yield Case(
            "rotate_and_write",
            form,
            shape.name,
            f"{shape.prefill} rows",
            size,
            0,
            partial(_rotate, shape, form),
        )
        chunk = _Load(1, shape.prefill, shape.prefill)
        yield _case(shape, "attend_prefill", form, chunk, f"{shape.prefill} rows")
        what = f"{many.sequences} sequences of {many.context}"
        yield _case(shape, "attend_decode", form, many, what)
    yield _case(
        shape,
        "attend_prefill",
        "bf16 window",
        _Load(1, shape.prefill, shape.context, window, 4),
        f"{shape.prefill} rows after {shape.context - shape.prefill}, window {window}, 4 sinks",
    )
    yield _case(
        shape,
        "attend_decode",
        "bf16 window",
        _Load(many.sequences, 1, many.context, window, 4),
        f"{many.sequences} sequences of {many.context}, window {window}, 4 sinks",
    )
    what = f"{verify.sequences} sequences of {verify.context}, 8 rows each"
    yield _case(shape, "attend_decode", "bf16 verify", verify, what)
    long = _Load(1, 1, 8 * shape.context)
    yield _case(shape, "attend_decode", "bf16 long", long, f"one sequence of {long.context}")


def _token_bytes(shape: Shape, form: str) -> int:
    """Of one token's key, or value, of one head."""
    return 2 * shape.head_dim if form.startswith("bf16") else shape.head_dim + 4


def _case(shape: Shape, operation: str, variant: str, load: _Load, what: str) -> Case:
    rows = load.rows * load.sequences
    size = 2 * rows * shape.heads * shape.head_dim * 2
    size += 2 * load.read * shape.kv_heads * _token_bytes(shape, variant)
    return Case(
        operation,
        variant,
        shape.name,
        what,
        size,
        4 * load.pairs * shape.heads * shape.head_dim,
        partial(_attend, shape, operation, variant.split()[0], load),
    )


def _plan(load: _Load, sequences: int, device: torch.device) -> AttentionPlan:
    """Blocks lie as if sequences had grown in turn: neighbours in a table are far apart."""
    count = -(-load.context // BLOCK_ROWS)
    tables = [
        [place * load.sequences + number for place in range(count)] for number in range(sequences)
    ]
    spans = [Span(number * load.rows, load.rows, load.context) for number in range(sequences)]
    return plan_attention(
        spans,
        tables,
        count * load.sequences,
        window=load.window,
        sinks=load.sinks,
        device=device,
    )


def _pool(
    shape: Shape, source: Source, form: str, plan: AttentionPlan
) -> tuple[Tensor, Tensor | None]:
    size = (2, plan.blocks, shape.kv_heads, BLOCK_ROWS)
    code = _CODES[form]
    if code is None:
        return source.floats(*size, shape.head_dim), None
    return source.codes(*size, shape.head_dim, dtype=code), source.scales(*size)


def _attend(shape: Shape, operation: str, form: str, load: _Load, device: torch.device) -> Prepared:
    source = Source(device)
    attend = ops.attend_prefill if operation == "attend_prefill" else ops.attend_decode
    plan = _plan(load, load.sequences, source.device)
    pages, scales = _pool(shape, source, form, plan)
    queries = source.floats(plan.rows, shape.heads, shape.head_dim)
    checked = _plan(load, min(_CHECKED, load.sequences), source.device)

    def exact() -> tuple[Tensor, Tensor, Tensor]:
        found = attend(queries, pages, plan, scales=scales, kernels="gpu")[: checked.rows]
        some = queries[: checked.rows].contiguous()
        eager = attend(some, pages, checked, scales=scales, kernels="reference")
        wide = pages.double() if scales is None else pages.double() * scales.double()[..., None]
        right = attend(some.double(), wide, checked, kernels="reference")
        return found, eager, right

    return Prepared(
        lambda: attend(queries, pages, plan, scales=scales, kernels="gpu"),
        exact,
        _torchs(shape, source, load) if form == "bf16" and not load.window else None,
    )


def _torchs(shape: Shape, source: Source, load: _Load) -> Run:
    """Torch's own attention over keys and values that lie in one run a sequence."""
    query = source.floats(load.sequences, shape.heads, load.rows, shape.head_dim)
    keys, values = (
        source.floats(load.sequences, shape.kv_heads, load.context, shape.head_dim)
        for _ in range(2)
    )
    causal = load.rows == load.context
    return lambda: functional.scaled_dot_product_attention(
        query, keys, values, is_causal=causal, enable_gqa=True
    )


def _rotate(shape: Shape, form: str, device: torch.device) -> Prepared:
    source = Source(device)
    load = _Load(1, shape.prefill, shape.prefill)
    plan = _plan(load, 1, source.device)
    pages, scales = _pool(shape, source, form, plan)
    rows = source.floats(shape.prefill, shape.heads + 2 * shape.kv_heads, shape.head_dim)
    cosines, sines = (
        source.floats(shape.context, shape.head_dim // 2, dtype=torch.float32) for _ in range(2)
    )

    def run(kernels: str = "gpu", rows: Tensor = rows) -> Tensor:
        own = pages if rows.dtype != torch.float64 else pages.double()
        return ops.rotate_and_write(rows, cosines, sines, plan, own, scales=scales, kernels=kernels)

    def exact() -> tuple[Tensor, Tensor, Tensor]:
        return run(), run("reference"), run("reference", rows.double())

    return Prepared(run, exact if form == "bf16" else None, lambda: run("reference"))
