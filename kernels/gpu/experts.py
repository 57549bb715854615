"""A mixture of experts: routing, products with each expert's matrix, and the weighted sum.

Pairs (row, choice) are sorted by expert, and each expert's pairs are cut into tiles of one height.
How many tiles an expert has is known only on the device; as many programs are launched as there can
be at most, and those beyond do nothing. So nothing is copied to the host, and a pair's sum runs in
its own order whatever the others are.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from firstlight.kernels.gpu.launch import (
    INTERPRETED,
    check_device,
    check_float8,
    narrow,
    triton_dtype,
)
from firstlight.kernels.gpu.matmul import product, product_int4, step_of, width_of
from firstlight.kernels.matrix import Matrix
from firstlight.kernels.routes import Routes

TILE_PAIRS = 64
_COLUMNS = 1024


@triton.jit
def route_kernel(
    logits,
    experts,
    weights,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHOSEN: tl.constexpr,
    RENORMALIZE: tl.constexpr,
):
    """A program routes one row.

    Grid: (rows). Tile: [BLOCK], EXPERTS rounded up to a power of two. Shapes: logits [n, EXPERTS];
    experts, weights [n, CHOSEN]. Dtypes: logits float32, bfloat16 or float16; experts int32;
    weights float32. Takes the largest CHOSEN times, the lowest expert of equals.
    Reads a row, writes 8 bytes a choice. Roofline: the latency of a launch.
    Errors: none; a NaN makes the row's weights NaN, and its experts still exist.
    """
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    inside = expert < EXPERTS
    x = tl.load(logits + row * EXPERTS + expert, mask=inside, other=float("-inf")).to(tl.float32)
    spread = tl.exp(x - tl.max(x, 0))
    share = spread / tl.sum(tl.where(inside, spread, 0.0), 0)
    left = tl.where(x == x, tl.maximum(x, -3.4028234663852886e38), -3.4028234663852886e38)
    left = tl.where(inside, left, float("-inf"))
    kept = tl.zeros([BLOCK], tl.int1)
    for choice in tl.static_range(CHOSEN):
        best = tl.min(tl.where(left == tl.max(left, 0), expert, BLOCK), 0)
        mine = expert == best
        kept |= mine
        left = tl.where(mine, float("-inf"), left)
        tl.store(experts + row * CHOSEN + choice, best)
        tl.store(weights + row * CHOSEN + choice, tl.sum(tl.where(mine, share, 0.0), 0))
    if RENORMALIZE:
        # The same sum as of what was written, in the order of the experts.
        total = tl.sum(tl.where(kept, share, 0.0), 0)
        tl.debug_barrier()
        for choice in tl.static_range(CHOSEN):
            place = weights + row * CHOSEN + choice
            tl.store(place, tl.load(place) / total)


@triton.jit
def grouped_kernel(
    rows,
    codes,
    scales,
    zeros,
    order,
    tile_experts,
    tile_firsts,
    tile_counts,
    out,
    DIVISOR: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    INT4: tl.constexpr,
    SCALED: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A program computes WIDTH outputs of up to HEIGHT pairs of one expert.

    Grid: (tiles, ⌈OUTPUTS / WIDTH⌉). Tiles: as in `matmul_kernel`. Shapes: rows [pairs / DIVISOR,
    INPUTS]; codes [experts, OUTPUTS, INPUTS] (int4: half of that); scales and zeros [experts,
    OUTPUTS, INPUTS / GROUP]; order [pairs], pairs sorted by expert; tile_experts, tile_firsts
    (into `order`) and tile_counts [tiles] int64; out [pairs, OUTPUTS] in the pairs' own order.
    Dtypes: rows and out float32, bfloat16 or float16; codes as in `matmul_kernel`.
    Reads the weights of experts that have pairs once a 64 pairs, writes out once.
    Roofline: bandwidth of those weights, for up to some 64 rows an expert.
    Errors: none. float8 needs sm_89 or later.
    """
    tile = tl.program_id(0)
    count = tl.load(tile_counts + tile)
    if count > 0:
        expert = tl.load(tile_experts + tile)
        slot = tl.arange(0, HEIGHT)
        valid = slot < count
        pair = tl.load(order + tl.load(tile_firsts + tile) + slot, mask=valid, other=0)
        column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        inside = column < OUTPUTS
        line = expert * OUTPUTS + column
        place = pair // DIVISOR * INPUTS
        if INT4:
            total = product_int4(
                rows,
                place,
                valid,
                codes,
                scales,
                zeros,
                line,
                inside,
                INPUTS,
                GROUP,
                HEIGHT,
                WIDTH,
                DTYPE,
                INTERPRETED,
            )
        else:
            total = product(
                rows,
                place,
                valid,
                codes,
                scales,
                line,
                inside,
                INPUTS,
                GROUP,
                HEIGHT,
                WIDTH,
                STEP,
                SCALED,
                False,
                DTYPE,
                INTERPRETED,
            )
        to = out + pair[:, None] * OUTPUTS + column[None, :]
        tl.store(to, narrow(total, DTYPE, INTERPRETED), mask=valid[:, None] & inside[None, :])


@triton.jit
def combine_kernel(
    pairs,
    weights,
    out,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    CHOSEN: tl.constexpr,
    DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A program adds up BLOCK columns of one row's pairs, the best expert first.

    Grid: (rows, ⌈WIDTH / BLOCK⌉). Tile: [BLOCK]. Shapes: pairs [rows · CHOSEN, WIDTH]; weights
    [rows, CHOSEN]; out [rows, WIDTH]. Dtypes: float32, bfloat16 or float16; weights float32.
    Reads CHOSEN values a result, writes one. Roofline: bandwidth. Errors: none.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(CHOSEN):
        pair = row * CHOSEN + choice
        part = tl.load(pairs + pair * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        total += part * tl.load(weights + pair)
    tl.store(out + row * WIDTH + column, narrow(total, DTYPE, INTERPRETED), mask=inside)


def route(logits: Tensor, chosen: int, renormalize: bool) -> Routes:
    """See `kernels.reference.experts`."""
    check_device("logits", logits)
    rows, experts = logits.shape
    picked = torch.empty(rows, chosen, dtype=torch.int32, device=logits.device)
    weights = torch.empty(rows, chosen, dtype=torch.float32, device=logits.device)
    if rows:
        route_kernel[(rows,)](
            logits,
            picked,
            weights,
            EXPERTS=experts,
            BLOCK=triton.next_power_of_2(experts),
            CHOSEN=chosen,
            RENORMALIZE=renormalize,
            num_warps=1,
        )
    return Routes(picked, weights)


def tiles_of(experts: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(order, tile experts, tile firsts, tile counts) of pairs that go to these experts.

    All sizes follow the number of pairs, so that it runs in a captured graph.
    """
    flat = experts.flatten().long()
    pairs = flat.numel()
    order = torch.argsort(flat, stable=True)
    held = (flat[:, None] == torch.arange(count, device=flat.device)).sum(0)
    tiles = (held + TILE_PAIRS - 1) // TILE_PAIRS
    ends, pair_ends = tiles.cumsum(0), held.cumsum(0)
    tile = torch.arange(pairs // TILE_PAIRS + min(count, pairs), device=flat.device)
    own = torch.searchsorted(ends, tile, right=True).clamp(max=count - 1)
    firsts = (pair_ends - held)[own] + (tile - (ends - tiles)[own]) * TILE_PAIRS
    counts = (pair_ends[own] - firsts).clamp(0, TILE_PAIRS) * (tile < ends[-1])
    return order, own, firsts, counts


def expert_matmul(rows: Tensor, weight: Matrix, routes: Routes, apart: bool) -> Tensor:
    """See `kernels.reference.experts`."""
    check_device("rows", rows)
    check_float8("weight", weight.codes.dtype, rows)
    count, chosen = routes.experts.shape
    out = torch.empty(count * chosen, weight.outputs, dtype=rows.dtype, device=rows.device)
    if count == 0:
        return out
    order, experts, firsts, counts = tiles_of(routes.experts, weight.experts)
    width = width_of(count * chosen // weight.experts)
    grouped_kernel[(experts.shape[0], triton.cdiv(weight.outputs, width))](
        rows,
        weight.codes,
        weight.codes if weight.scales is None else weight.scales,
        weight.codes if weight.zeros is None else weight.zeros,
        order,
        experts,
        firsts,
        counts,
        out,
        DIVISOR=1 if apart else chosen,
        INPUTS=weight.inputs,
        OUTPUTS=weight.outputs,
        GROUP=weight.group,
        HEIGHT=TILE_PAIRS,
        WIDTH=width,
        STEP=step_of(weight),
        INT4=weight.form == "int4",
        SCALED=weight.scales is not None,
        DTYPE=triton_dtype(rows.dtype),
        INTERPRETED=INTERPRETED,
        num_warps=4 if width <= 64 else 8,
        num_stages=4,
    )
    return out


def combine_experts(pairs: Tensor, routes: Routes) -> Tensor:
    """See `kernels.reference.experts`."""
    check_device("pairs", pairs)
    count, chosen = routes.weights.shape
    width = pairs.shape[1]
    out = torch.empty(count, width, dtype=pairs.dtype, device=pairs.device)
    if count:
        combine_kernel[(count, triton.cdiv(width, _COLUMNS))](
            pairs,
            routes.weights,
            out,
            WIDTH=width,
            BLOCK=_COLUMNS,
            CHOSEN=chosen,
            DTYPE=triton_dtype(pairs.dtype),
            INTERPRETED=INTERPRETED,
            num_warps=4,
        )
    return out
