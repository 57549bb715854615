"""Which logits min-p, top-k and top-p leave: an edge a row, found by halving.

Ids are ordered by (logit descending, id ascending), and each filter leaves a front of that order.
So what is left is described by the last logit that is in, and the last id of those that have it. A
logit as an unsigned number that sorts the same is found bit by bit: how many ids, or what share,
lie at or above the middle of what is still possible? Each answer reads the row from the cache once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from firstlight.kernels.draws import DrawTable
from firstlight.kernels.gpu.launch import INTERPRETED

_TILE = 4096


@triton.jit
def sortable(x):
    """int64 from 0 to 2³² − 1 that sorts as float32 `x` does; −0 is 0."""
    bits = tl.where(x == 0, 0.0, x).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 > 0, bits ^ 0xFFFFFFFF, bits | 0x80000000).to(tl.int64)


@triton.jit
def tile_of(logits, start, temperature, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """(ids, which are of the vocabulary, tempered logits) from `start` on."""
    token = start + tl.arange(0, TILE)
    inside = token < VOCAB
    x = tl.load(logits + token, mask=inside, other=float("-inf"))
    return token, inside, tl.math.div_rn(x, tl.broadcast_to(temperature, x.shape))


@triton.jit
def share_above(
    logits,
    weights,
    temperature,
    edge,
    cutoff,
    low,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    """float64: weights, or number, of ids that (edge, cutoff) leave with a key from `low` on."""
    total = tl.zeros([TILE], tl.float64)
    for start in range(0, VOCAB, TILE):
        token, inside, x = tile_of(logits, start, temperature, VOCAB, TILE)
        key = sortable(x)
        left = inside & (key >= low) & ((key > edge) | ((key == edge) & (token <= cutoff)))
        if WEIGHTED:
            total += tl.load(weights + token, mask=left, other=0.0)
        else:
            total += tl.where(left, 1.0, 0.0).to(tl.float64)
    return tl.sum(total, 0)


@triton.jit
def edge_of(
    logits,
    weights,
    temperature,
    edge,
    cutoff,
    wanted,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    """The largest key at or above which `wanted` lies, of what (edge, cutoff) leave."""
    low, high = edge, tl.full([], 1 << 32, tl.int64)
    while high - low > 1:
        middle = (low + high) // 2
        found = share_above(
            logits, weights, temperature, edge, cutoff, middle, VOCAB, TILE, WEIGHTED
        )
        enough = found >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit
def nth_id(logits, temperature, edge, nth, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """The id that is the nth, from 1, of those whose key is `edge`; VOCAB if there are fewer."""
    before = tl.full([], 0, tl.int32)
    found = tl.full([], VOCAB, tl.int32)
    for start in range(0, VOCAB, TILE):
        token, inside, x = tile_of(logits, start, temperature, VOCAB, TILE)
        equal = (inside & (sortable(x) == edge)).to(tl.int32)
        hit = (equal > 0) & (before + tl.cumsum(equal, 0) == nth)
        found = tl.minimum(found, tl.min(tl.where(hit, token, VOCAB), 0))
        before += tl.sum(equal, 0)
    return found


@triton.jit
def weigh(logits, weights, temperature, min_p, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """Writes exp(logit − largest) of a row in float64; returns the smallest key that min-p
    leaves."""
    most = tl.full([TILE], float("-inf"), tl.float32)
    for start in range(0, VOCAB, TILE):
        _, _, x = tile_of(logits, start, temperature, VOCAB, TILE)
        most = tl.maximum(most, x)
    peak = tl.max(most, 0).to(tl.float64)
    lowest = tl.full([], (1 << 32) - 1, tl.int64)
    for start in range(0, VOCAB, TILE):
        token, inside, x = tile_of(logits, start, temperature, VOCAB, TILE)
        weight = tl.exp(x.to(tl.float64) - peak)
        tl.store(weights + token, weight, mask=inside)
        key = tl.where(inside & (weight >= min_p), sortable(x), (1 << 32) - 1)
        lowest = tl.minimum(lowest, tl.min(key, 0))
    tl.debug_barrier()
    return lowest


@triton.jit
def select_kernel(
    logits,
    temperatures,
    top_k,
    shares,
    weights,
    edges,
    cutoffs,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program finds what is left of one row: ids above `edge`, and at it up to `cutoff`.

    Grid: (rows). Tile: [TILE]. Shapes: logits, weights [n, VOCAB]; temperatures, top_k, edges,
    cutoffs [n]; shares [n, 2]: top-p, min-p. Dtypes: logits and temperatures float32; weights and
    shares float64; top_k and cutoffs int32; edges int64.
    Reads a row up to 32 times for top-k, and its weights as often for top-p, from the cache; writes
    the weights once. Rows without filters read and write nothing but their result.
    Roofline: the bandwidth of one processor's cache. Errors: none.
    """
    row = tl.program_id(0)
    own = logits + row.to(tl.int64) * VOCAB
    mine = weights + row.to(tl.int64) * VOCAB
    temperature = tl.load(temperatures + row)
    count = tl.load(top_k + row)
    top_p, min_p = tl.load(shares + 2 * row), tl.load(shares + 2 * row + 1)
    edge, cutoff = tl.full([], 0, tl.int64), tl.full([], VOCAB, tl.int32)
    if (temperature > 0) & ((count > 0) | (top_p < 1) | (min_p > 0)):
        edge = weigh(own, mine, temperature, min_p, VOCAB, TILE)
        if count > 0:
            wanted = count.to(tl.float64)
            if share_above(own, mine, temperature, edge, cutoff, edge, VOCAB, TILE, False) > wanted:
                at = edge_of(own, mine, temperature, edge, cutoff, wanted, VOCAB, TILE, False)
                over = share_above(own, mine, temperature, edge, cutoff, at + 1, VOCAB, TILE, False)
                cutoff = nth_id(own, temperature, at, count - over.to(tl.int32), VOCAB, TILE)
                edge = at
        if top_p < 1:
            total = share_above(own, mine, temperature, edge, cutoff, edge, VOCAB, TILE, True)
            wanted = top_p * total
            at = edge_of(own, mine, temperature, edge, cutoff, wanted, VOCAB, TILE, True)
            over = share_above(own, mine, temperature, edge, cutoff, at + 1, VOCAB, TILE, True)
            both = share_above(own, mine, temperature, edge, cutoff, at, VOCAB, TILE, True)
            held = share_above(own, mine, temperature, edge, cutoff, at, VOCAB, TILE, False)
            held -= share_above(own, mine, temperature, edge, cutoff, at + 1, VOCAB, TILE, False)
            each = (both - over) / held
            nth = tl.maximum(tl.ceil((wanted - over) / each), 1.0)
            nth = tl.where((nth > 1) & (over + (nth - 1) * each >= wanted), nth - 1, nth)
            nth = tl.minimum(tl.where(over + nth * each < wanted, nth + 1, nth), held)
            last = nth_id(own, temperature, at, nth.to(tl.int32), VOCAB, TILE)
            cutoff = tl.where(at == edge, tl.minimum(cutoff, last), last)
            edge = at
    tl.store(edges + row, edge)
    tl.store(cutoffs + row, cutoff)


def select(logits: Tensor, draws: DrawTable) -> tuple[Tensor, Tensor]:
    """(edges, cutoffs) of rows of finite logits; of others they mean nothing."""
    rows, vocab = logits.shape
    edges = torch.empty(rows, dtype=torch.int64, device=logits.device)
    cutoffs = torch.empty(rows, dtype=torch.int32, device=logits.device)
    weights = torch.empty(rows, vocab, dtype=torch.float64, device=logits.device)
    select_kernel[(rows,)](
        logits,
        draws.temperatures,
        draws.top_k,
        draws.shares,
        weights,
        edges,
        cutoffs,
        VOCAB=vocab,
        TILE=_TILE if not INTERPRETED else min(_TILE, triton.next_power_of_2(vocab)),
        num_warps=8,
        enable_fp_fusion=False,
    )
    return edges, cutoffs
