"""The operations that a model is made of, one at a time, and the choice of who carries them out.

A function here checks its arguments and calls the form asked for: `reference` is plain torch and
says what is right, `gpu` is Triton. `auto` takes `gpu` for tensors on a GPU and `reference` for
others. `kernels.reference` and `kernels.gpu` have the same modules and names. A form asked for by
name never falls back to another one. What whole models run on is in `kernels.sets`.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from firstlight.kernels.checks import FLOATS, check_blocks, check_pages, check_range, check_tensor
from firstlight.kernels.draws import DrawTable
from firstlight.kernels.matrix import Matrix
from firstlight.kernels.plan import VERIFY_ROWS_MAX, AttentionPlan
from firstlight.kernels.routes import Routes

OPERATIONS = {
    "rms_norm": "norm",
    "add_rms_norm": "norm",
    "silu_mul": "activation",
    "quantize_rows": "quantize",
    "rotate_and_write": "rotary",
    "attend_prefill": "prefill",
    "attend_decode": "decode",
    "matmul": "matmul",
    "copy_blocks": "blocks",
    "pack_blocks": "blocks",
    "unpack_blocks": "blocks",
    "route": "experts",
    "expert_matmul": "experts",
    "combine_experts": "experts",
    "adjust_logits": "sampling",
    "sample": "sampling",
}
"""Each operation, and the module of every form that has it."""
FORMS = ("reference", "gpu")
EXPERTS_MAX = 1024
CHOSEN_MAX = 32


def implementation(operation: str, kernels: str, tensor: Tensor) -> tuple[str, Callable[..., Any]]:
    """(form, function) of an operation; `auto` is the form for where the tensor lies.

    Raises:
        ValueError: there is no such form, or it is not installed.

    """
    if kernels == "auto":
        kernels = "gpu" if tensor.is_cuda else "reference"
    if kernels in ("eager", "cpu"):
        raise ValueError(f"kernels {kernels!r} have no {operation} by itself, only whole models")
    if kernels not in FORMS:
        raise ValueError(f"kernels {kernels!r} are unknown, expected auto, reference or gpu")
    try:
        module = import_module(f"firstlight.kernels.{kernels}.{OPERATIONS[operation]}")
    except ImportError as error:
        raise ValueError(f"kernels {kernels!r} are not installed: {error}") from error
    function: Callable[..., Any] = getattr(module, operation)
    return kernels, function


def rms_norm(rows: Tensor, weight: Tensor, eps: float, *, kernels: str = "auto") -> Tensor:
    """x · weight / √(mean(x²) + eps) of each row: [n, width], [width] → [n, width].

    Raises:
        ValueError: an argument has another shape, dtype or device than it must.

    """
    kernels, run = implementation("rms_norm", kernels, rows)
    _check_norm(rows, weight, eps, kernels)
    out: Tensor = run(rows, weight, eps)
    return out


def add_rms_norm(
    rows: Tensor, residual: Tensor, weight: Tensor, eps: float, *, kernels: str = "auto"
) -> tuple[Tensor, Tensor]:
    """(norm of rows + residual, rows + residual rounded): each [n, width] of the rows' dtype.

    Raises:
        ValueError: an argument has another shape, dtype or device than it must.

    """
    kernels, run = implementation("add_rms_norm", kernels, rows)
    _check_norm(rows, weight, eps, kernels)
    check_tensor("residual", residual, rows.shape, (rows.dtype,), rows.device)
    out: tuple[Tensor, Tensor] = run(rows, residual, weight, eps)
    return out


def silu_mul(gate_up: Tensor, *, kernels: str = "auto") -> Tensor:
    """SiLU(first half) · second half: [n, 2 · width] → [n, width].

    Raises:
        ValueError: another shape or dtype.

    """
    kernels, run = implementation("silu_mul", kernels, gate_up)
    check_tensor("gate_up", gate_up, ("rows…", "2 · width"), _floats(kernels))
    if gate_up.shape[1] % 2:
        raise ValueError(f"gate_up is {list(gate_up.shape)}, expected an even width")
    out: Tensor = run(gate_up)
    return out


def quantize_rows(
    rows: Tensor, dtype: torch.dtype, *, kernels: str = "auto"
) -> tuple[Tensor, Tensor]:
    """(codes [n, width], float32 scales [n]) of rows [n, width]; dtype int8 or float8_e4m3fn.

    Raises:
        ValueError: another shape or dtype.

    """
    kernels, run = implementation("quantize_rows", kernels, rows)
    check_tensor("rows", rows, ("rows…", "width"), FLOATS)
    if dtype not in (torch.int8, torch.float8_e4m3fn):
        raise ValueError(f"dtype is {dtype}, expected int8 or float8_e4m3fn")
    out: tuple[Tensor, Tensor] = run(rows, dtype)
    return out


def rotate_and_write(
    rows: Tensor,
    cosines: Tensor,
    sines: Tensor,
    plan: AttentionPlan,
    pages: Tensor,
    *,
    scales: Tensor | None = None,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
    kernels: str = "auto",
) -> Tensor:
    """Rotated queries [n, heads, dim] of rows [n, heads + 2 · kv_heads, dim] (of q, k, v).

    Keys and values are written into `pages` [2, blocks, kv_heads, 16, dim] at the plan's slots, as
    codes with `scales` [2, blocks, kv_heads, 16] where pages are int8 or float8; NaN as 0 and an
    infinity as 65,504, since a masked weight of 0 would not undo them for others. `cosines` and
    `sines` are float32 [positions, dim / 2]. With `norms`, queries and keys are first normed over
    their dimensions with these two weights [dim].

    Raises:
        ValueError: an argument does not fit the others.

    """
    kernels, run = implementation("rotate_and_write", kernels, rows)
    check_pages(pages, scales, plan.blocks, rows.device)
    _, _, kv_heads, _, dim = pages.shape
    check_tensor("rows", rows, (plan.rows, "heads", dim), _floats(kernels), plan.slots.device)
    if rows.shape[1] <= 2 * kv_heads or (rows.shape[1] - 2 * kv_heads) % kv_heads:
        raise ValueError(f"rows have {rows.shape[1]} heads, expected queries beside {kv_heads} · 2")
    for name, table in (("cosines", cosines), ("sines", sines)):
        check_tensor(name, table, ("positions", dim // 2), (torch.float32,), rows.device)
        if table.shape[0] < plan.context_max:
            raise ValueError(f"{name} has {table.shape[0]} rows, expected {plan.context_max}")
    for weight in norms or ():
        check_tensor("norms", weight, (dim,), _floats(kernels), rows.device)
    check_range("eps", eps, 0.0, 1.0)
    out: Tensor = run(rows, cosines, sines, plan, pages, scales, norms, eps)
    return out


def attend_prefill(
    queries: Tensor,
    pages: Tensor,
    plan: AttentionPlan,
    *,
    scales: Tensor | None = None,
    kernels: str = "auto",
) -> Tensor:
    """Causal attention over pages: queries [n, heads, dim] → the same.

    Rows, tables, window and sinks are the plan's. `scales` as in `rotate_and_write`.

    Raises:
        ValueError: an argument does not fit the others.

    """
    kernels, run = implementation("attend_prefill", kernels, queries)
    _check_attention(queries, pages, plan, scales, kernels)
    out: Tensor = run(queries, pages, plan, scales)
    return out


def attend_decode(
    queries: Tensor,
    pages: Tensor,
    plan: AttentionPlan,
    *,
    scales: Tensor | None = None,
    kernels: str = "auto",
) -> Tensor:
    """The same for one to eight rows a sequence: decode, or decode with hints to verify.

    Raises:
        ValueError: an argument does not fit the others, or a sequence has more rows.

    """
    kernels, run = implementation("attend_decode", kernels, queries)
    _check_attention(queries, pages, plan, scales, kernels)
    if plan.rows_max > VERIFY_ROWS_MAX:
        raise ValueError(f"plan has a span of {plan.rows_max} rows, expected {VERIFY_ROWS_MAX}")
    out: Tensor = run(queries, pages, plan, scales)
    return out


def matmul(
    rows: Tensor,
    weight: Matrix,
    *,
    bias: Tensor | None = None,
    row_scales: Tensor | None = None,
    dtype: torch.dtype | None = None,
    kernels: str = "auto",
) -> Tensor:
    """rows · weightᵀ + bias: [n, inputs] → [n, outputs] of `dtype` (the rows' own if None).

    Rows of float8 come with `row_scales` [n] (`quantize_rows`), go with weights of fp8, and give
    bfloat16 unless told otherwise.

    Raises:
        ValueError: an argument does not fit the others.

    """
    kernels, run = implementation("matmul", kernels, rows)
    coded = row_scales is not None
    if coded != (rows.dtype == torch.float8_e4m3fn) or (coded and weight.form != "fp8"):
        given = "row_scales" if coded else "no row_scales"
        raise ValueError(
            f"rows are {rows.dtype} with {given} for a weight of {weight.form}, expected float8 "
            "rows with row_scales for fp8, or float rows without"
        )
    if weight.experts:
        raise ValueError(f"weight has {weight.experts} experts, expected one matrix")
    floats = (torch.float8_e4m3fn,) if coded else _floats(kernels)
    device = weight.codes.device
    check_tensor("rows", rows, ("rows…", weight.inputs), floats, device)
    if weight.form == "float" and kernels == "gpu" and weight.codes.dtype != rows.dtype:
        raise ValueError(f"weight is {weight.codes.dtype}, expected {rows.dtype} as rows are")
    if bias is not None:
        check_tensor("bias", bias, (weight.outputs,), _floats(kernels), device)
    if row_scales is not None:
        check_tensor("row_scales", row_scales, (rows.shape[0],), (torch.float32,), device)
    wanted = dtype or (torch.bfloat16 if coded else rows.dtype)
    if wanted not in _floats(kernels):
        raise ValueError(f"dtype is {wanted}, expected float32, bfloat16 or float16")
    out: Tensor = run(rows, weight, bias, row_scales, wanted)
    return out


def copy_blocks(
    pool: Tensor, sources: Sequence[int], targets: Sequence[int], *, kernels: str = "auto"
) -> None:
    """In `pool` [layers, 2, blocks, …] each target becomes its source, in every layer.

    Raises:
        ValueError: an id is out of range, or the result would depend on the order of copies.

    """
    kernels, run = implementation("copy_blocks", kernels, pool)
    if len(sources) != len(targets):
        raise ValueError(f"targets are {len(targets)}, expected {len(sources)} as sources")
    read, written = check_blocks("sources", sources, pool), check_blocks("targets", targets, pool)
    if len({*targets, *sources}) != len(targets) + len(set(sources)):
        raise ValueError(f"targets are {list(targets)}, expected each once and none a source")
    run(pool, read, written)


def pack_blocks(pool: Tensor, blocks: Sequence[int], *, kernels: str = "auto") -> Tensor:
    """Blocks of `pool` [layers, 2, blocks, …] as runs [count, layers, 2, …], to send or to keep.

    Raises:
        ValueError: an id is out of range.

    """
    kernels, run = implementation("pack_blocks", kernels, pool)
    out: Tensor = run(pool, check_blocks("blocks", blocks, pool))
    return out


def unpack_blocks(
    packed: Tensor, pool: Tensor, blocks: Sequence[int], *, kernels: str = "auto"
) -> None:
    """Writes runs [count, layers, 2, …] to the places of these blocks in `pool`.

    Raises:
        ValueError: an id is out of range or comes twice, or the runs are of another shape.

    """
    kernels, run = implementation("unpack_blocks", kernels, pool)
    places = check_blocks("blocks", blocks, pool)
    if len(set(blocks)) != len(blocks):
        raise ValueError(f"blocks are {list(blocks)}, expected each once")
    shape = (len(blocks), *pool.shape[:2], *pool.shape[3:])
    check_tensor("packed", packed, shape, (pool.dtype,), pool.device)
    run(packed, pool, places)


def route(
    logits: Tensor, chosen: int, *, renormalize: bool = True, kernels: str = "auto"
) -> Routes:
    """The `chosen` best experts of each row by router logits [n, experts], and their weights.

    Raises:
        ValueError: an argument does not fit the others.

    """
    kernels, run = implementation("route", kernels, logits)
    check_tensor("logits", logits, ("rows…", "experts"), _floats(kernels))
    check_range("chosen", chosen, 1, min(logits.shape[1], CHOSEN_MAX))
    check_range("experts", logits.shape[1], 1, EXPERTS_MAX)
    out: Routes = run(logits, chosen, renormalize)
    return out


def expert_matmul(
    rows: Tensor, weight: Matrix, routes: Routes, *, apart: bool = False, kernels: str = "auto"
) -> Tensor:
    """Each (row, choice) through the matrix of its expert: [n · chosen, outputs].

    `rows` are [n, inputs], or with `apart` one for each pair [n · chosen, inputs]. Experts on a GPU
    are not read back: they are those that `route` gave.

    Raises:
        ValueError: an argument does not fit the others.

    """
    kernels, run = implementation("expert_matmul", kernels, rows)
    count, chosen = routes.experts.shape
    shape = (count * chosen if apart else count, weight.inputs)
    check_tensor("rows", rows, shape, _floats(kernels), weight.codes.device)
    if not weight.experts:
        raise ValueError("weight is one matrix, expected one for each expert")
    if weight.form == "float" and kernels == "gpu" and weight.codes.dtype != rows.dtype:
        raise ValueError(f"weight is {weight.codes.dtype}, expected {rows.dtype} as rows are")
    check_tensor("routes", routes.experts, (count, chosen), (torch.int32,), rows.device)
    if routes.experts.device.type == "cpu" and routes.experts.numel():
        check_range("routes", int(routes.experts.min()), 0, weight.experts - 1)
        check_range("routes", int(routes.experts.max()), 0, weight.experts - 1)
    out: Tensor = run(rows, weight, routes, apart)
    return out


def combine_experts(pairs: Tensor, routes: Routes, *, kernels: str = "auto") -> Tensor:
    """The weighted sum of each row's pairs: [n · chosen, width] → [n, width].

    Raises:
        ValueError: an argument does not fit the others.

    """
    kernels, run = implementation("combine_experts", kernels, pairs)
    count, chosen = routes.weights.shape
    check_tensor("pairs", pairs, (count * chosen, "width"), _floats(kernels), routes.weights.device)
    check_tensor("routes", routes.weights, (count, chosen), (torch.float32, torch.float64))
    out: Tensor = run(pairs, routes)
    return out


def mix_experts(
    rows: Tensor, gate_up: Matrix, down: Matrix, routes: Routes, *, kernels: str = "auto"
) -> Tensor:
    """A whole mixture: rows [n, hidden] through each of their experts' MLPs, weighted and summed.

    Raises:
        ValueError: an argument does not fit the others.

    """
    wide = expert_matmul(rows, gate_up, routes, kernels=kernels)
    pairs = expert_matmul(
        silu_mul(wide, kernels=kernels), down, routes, apart=True, kernels=kernels
    )
    return combine_experts(pairs, routes, kernels=kernels)


def adjust_logits(logits: Tensor, draws: DrawTable, *, kernels: str = "auto") -> None:
    """Adds biases and takes penalties off float32 logits [n, vocab], in place.

    Raises:
        ValueError: an argument does not fit the other.

    """
    kernels, run = implementation("adjust_logits", kernels, logits)
    _check_logits(logits, draws)
    run(logits, draws)


def sample(logits: Tensor, draws: DrawTable, *, kernels: str = "auto") -> Tensor:
    """int64 [n]: ids by adjusted float32 logits [n, vocab], −1 for a row that is not finite.

    Temperature → min-p → top-k → top-p → the largest of logit + noise; the lowest id of equals.

    Raises:
        ValueError: an argument does not fit the other.

    """
    kernels, run = implementation("sample", kernels, logits)
    _check_logits(logits, draws)
    out: Tensor = run(logits, draws)
    return out


def _check_logits(logits: Tensor, draws: DrawTable) -> None:
    device = draws.keys.device
    check_tensor("logits", logits, (draws.rows, draws.vocab), (torch.float32,), device)


def _check_attention(
    queries: Tensor, pages: Tensor, plan: AttentionPlan, scales: Tensor | None, kernels: str
) -> None:
    check_pages(pages, scales, plan.blocks, queries.device)
    _, _, kv_heads, _, dim = pages.shape
    check_tensor("queries", queries, (plan.rows, "heads", dim), _floats(kernels), plan.spans.device)
    if queries.shape[1] % kv_heads:
        raise ValueError(
            f"queries have {queries.shape[1]} heads, expected a multiple of {kv_heads}"
        )
    if scales is None and kernels == "gpu" and pages.dtype != queries.dtype:
        raise ValueError(f"queries are {queries.dtype}, expected {pages.dtype} as pages are")


def _check_norm(rows: Tensor, weight: Tensor, eps: float, kernels: str) -> None:
    check_tensor("rows", rows, ("rows…", "width"), _floats(kernels))
    check_tensor("weight", weight, (rows.shape[1],), _floats(kernels), rows.device)
    check_range("eps", eps, 0.0, 1.0)


def _floats(kernels: str) -> tuple[torch.dtype, ...]:
    """What rows may be made of; the reference takes float64 too, to judge others by."""
    return FLOATS if kernels == "gpu" else (*FLOATS, torch.float64)
