"""Products with weights in every form, and mixtures of experts."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from firstlight.infra.bench.kernels.cases import Case, Prepared, Source
from firstlight.infra.bench.kernels.shapes import Shape
from firstlight.kernels import ops
from firstlight.kernels.matrix import Matrix
from firstlight.kernels.reference.matmul import weights_of
from firstlight.kernels.routes import Routes

_FORMS = ("float", "int8", "fp8", "int4")
_GROUP = 128
_FEW = 16
"""Rows of a decode."""
_CHECKED = 8


def cases(shape: Shape) -> Iterator[Case]:
    """Bound by the bandwidth of weights for few rows, by products for many."""
    wide, hidden = 2 * shape.intermediate, shape.hidden
    for rows in (_FEW, shape.prefill):
        for form in _FORMS:
            yield _matmul(shape, form, rows, wide, hidden, False)
        yield _matmul(shape, "fp8", rows, wide, hidden, True)
    yield _matmul(shape, "int8", _FEW, hidden, hidden, False)
    yield Case(
        "route",
        "bf16",
        shape.name,
        f"{shape.prefill} rows, {shape.chosen} of {shape.experts}",
        shape.prefill * (2 * shape.experts + 8 * shape.chosen),
        0,
        partial(_route, shape),
    )
    for form in ("float", "int8", "fp8", "int4"):
        for rows in (_FEW, shape.prefill):
            yield _mixture(shape, form, rows)


def _weight(source: Source, form: str, *leading: int, outputs: int, inputs: int) -> Matrix:
    if form == "float":
        return Matrix(form, source.floats(*leading, outputs, inputs))
    if form == "int4":
        groups = (*leading, outputs, inputs // _GROUP)
        codes = source.codes(*leading, outputs, inputs // 2, dtype=torch.uint8)
        zeros = torch.full(groups, 8, dtype=torch.uint8, device=source.device)
        return Matrix(form, codes, source.scales(*groups), zeros)
    dtype = torch.int8 if form == "int8" else torch.float8_e4m3fn
    codes = source.codes(*leading, outputs, inputs, dtype=dtype)
    return Matrix(form, codes, source.scales(*leading, outputs, 1))


def _weight_bytes(form: str, outputs: int, inputs: int) -> int:
    if form == "int4":
        return outputs * (inputs // 2 + inputs // _GROUP * 5)
    return outputs * inputs * 2 if form == "float" else outputs * (inputs + 4)


def _matmul(shape: Shape, form: str, rows: int, outputs: int, inputs: int, coded: bool) -> Case:
    size = _weight_bytes(form, outputs, inputs) + rows * outputs * 2
    size += rows * (inputs + 4 if coded else inputs * 2)
    variant = "fp8 × fp8" if coded else "bf16" if form == "float" else f"bf16 × {form}"
    return Case(
        "matmul",
        variant,
        shape.name,
        f"{rows} × {inputs} → {outputs}",
        size,
        2 * rows * outputs * inputs,
        partial(_product, form, rows, outputs, inputs, coded),
    )


def _product(
    form: str, rows: int, outputs: int, inputs: int, coded: bool, device: torch.device
) -> Prepared:
    source = Source(device)
    weight = _weight(source, form, outputs=outputs, inputs=inputs)
    if coded:
        x = source.codes(rows, inputs, dtype=torch.float8_e4m3fn)
        scales: Tensor | None = source.scales(rows)
    else:
        x, scales = source.floats(rows, inputs), None

    def exact() -> tuple[Tensor, Tensor, Tensor]:
        found = ops.matmul(x, weight, row_scales=scales, kernels="gpu")[:_CHECKED]
        wide = x[:_CHECKED].double()
        wide = wide if scales is None else wide * scales[:_CHECKED, None].double()
        eager = functional.linear(wide.bfloat16(), weights_of(weight).bfloat16())
        return found, eager, functional.linear(wide, weights_of(weight, torch.float64))

    dense = x.bfloat16(), weight.codes if form == "float" else source.floats(outputs, inputs)
    return Prepared(
        lambda: ops.matmul(x, weight, row_scales=scales, kernels="gpu"),
        exact,
        lambda: functional.linear(*dense),
    )


def _route(shape: Shape, device: torch.device) -> Prepared:
    source = Source(device)
    logits = source.floats(shape.prefill, shape.experts)

    def exact() -> tuple[Tensor, Tensor, Tensor]:
        found, eager, right = (
            ops.route(rows, shape.chosen, kernels=kernels).weights
            for rows, kernels in (
                (logits, "gpu"),
                (logits, "reference"),
                (logits.double(), "reference"),
            )
        )
        return found, eager, right

    return Prepared(
        lambda: ops.route(logits, shape.chosen, kernels="gpu"),
        exact,
        lambda: logits.softmax(-1).topk(shape.chosen),
    )


def _mixture(shape: Shape, form: str, rows: int) -> Case:
    hidden, wide = shape.hidden, shape.expert_intermediate
    met = min(shape.experts, rows * shape.chosen)
    size = met * (_weight_bytes(form, 2 * wide, hidden) + _weight_bytes(form, hidden, wide))
    pairs = rows * shape.chosen
    size += 2 * (rows * hidden + pairs * (2 * 2 * wide + 2 * wide + 2 * hidden) + rows * hidden)
    return Case(
        "mix_experts",
        "bf16" if form == "float" else f"bf16 × {form}",
        shape.name,
        f"{rows} rows, {shape.chosen} of {shape.experts}, {hidden} → {wide}",
        size,
        2 * pairs * 3 * wide * hidden,
        partial(_experts, shape, form, rows),
    )


def _experts(shape: Shape, form: str, rows: int, device: torch.device) -> Prepared:
    source = Source(device)
    count, wide, hidden = shape.experts, shape.expert_intermediate, shape.hidden
    gate_up = _weight(source, form, count, outputs=2 * wide, inputs=hidden)
    down = _weight(source, form, count, outputs=hidden, inputs=wide)
    x = source.floats(rows, hidden)
    row = torch.arange(rows, device=source.device)[:, None]
    choice = torch.arange(shape.chosen, device=source.device)
    experts = ((row * shape.chosen + choice) % count).to(torch.int32)
    weights = torch.full((rows, shape.chosen), 1 / shape.chosen, device=source.device)
    routes = Routes(experts.contiguous(), weights)

    def exact() -> tuple[Tensor, Tensor, Tensor]:
        found = ops.mix_experts(x, gate_up, down, routes, kernels="gpu")[:1]
        one = Routes(routes.experts[:1], routes.weights[:1])
        own = _first(gate_up, shape.chosen), _first(down, shape.chosen)
        eager = ops.mix_experts(x[:1], *own, one, kernels="reference")
        right = ops.mix_experts(x[:1].double(), *own, one, kernels="reference")
        return found, eager, right

    return Prepared(lambda: ops.mix_experts(x, gate_up, down, routes, kernels="gpu"), exact)


def _first(weight: Matrix, count: int) -> Matrix:
    """The first experts: those of the first row."""
    scales, zeros = (None if p is None else p[:count] for p in (weight.scales, weight.zeros))
    return Matrix(weight.form, weight.codes[:count], scales, zeros)
