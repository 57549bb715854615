"""How an id is chosen, for every row of a step at once.

A row without top-k, top-p and min-p is read once: temperature, noise and argmax happen on the way.
For other rows `selection` finds out first which logits are left. Products are never joined with
sums here (`enable_fp_fusion`), divisions are exact, and the noise is that of the reference to the
bit, so ids are too, but for a sum of shares in float64 within rounding of top-p itself.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from firstlight.kernels.draws import DrawTable
from firstlight.kernels.gpu.launch import INTERPRETED, check_device
from firstlight.kernels.gpu.philox import gumbel, noise_bits
from firstlight.kernels.gpu.selection import select, sortable

_PIECE = 4096
_ENTRIES = 256


@triton.jit
def adjust_kernel(
    logits,
    ids,
    values,
    starts,
    penalties,
    count,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program adjusts one row in place: biases, then repetition, then frequency and presence.

    Grid: (rows). Tile: [BLOCK] entries. Shapes: logits [count, VOCAB]; ids, values [entries];
    starts [3, count + 1] int32; penalties [count, 3]. Dtypes: float32, ids int32. An id comes once
    in each list, so no two entries of a pass meet; a barrier stands between two passes.
    Reads 8 bytes an entry, reads and writes 4 of logits. Roofline: latency of scattered reads.
    Errors: none; ids were checked on the host.
    """
    row = tl.program_id(0)
    own = logits + row.to(tl.int64) * VOCAB
    entry = tl.arange(0, BLOCK)
    repetition = tl.load(penalties + 3 * row)
    presence = tl.load(penalties + 3 * row + 1)
    frequency = tl.load(penalties + 3 * row + 2)
    for kind in tl.static_range(3):
        begin = tl.load(starts + kind * (count + 1) + row)
        end = tl.load(starts + kind * (count + 1) + row + 1)
        for start in range(begin, end, BLOCK):
            inside = start + entry < end
            token = tl.load(ids + start + entry, mask=inside, other=0)
            value = tl.load(values + start + entry, mask=inside, other=0.0)
            held = tl.load(own + token, mask=inside, other=0.0)
            if kind == 0:
                held += value
            elif kind == 1:
                divisor = tl.broadcast_to(repetition, held.shape)
                held = tl.where(held < 0, held * repetition, tl.math.div_rn(held, divisor))
            else:
                held = held - frequency * value
                held = held - presence
            tl.store(own + token, held, mask=inside)
        tl.debug_barrier()


@triton.jit
def score_kernel(
    logits,
    keys,
    temperatures,
    edges,
    cutoffs,
    best_scores,
    best_ids,
    wrong,
    pieces,
    VOCAB: tl.constexpr,
    PIECE: tl.constexpr,
    FILTERED: tl.constexpr,
):
    """A program finds the best id of one piece of one row's vocabulary.

    Grid: (rows, pieces). Tile: [PIECE]. Shapes: logits [n, VOCAB]; keys [n, 4]; temperatures,
    edges, cutoffs [n]; best_scores, best_ids, wrong [n, pieces]. Dtypes: float32; keys and edges
    int64; cutoffs, best_ids and wrong int32; noise in float64, rounded to float32.
    Reads each logit once, writes 12 bytes a piece.
    Roofline: bandwidth, beside two logarithms in float64 for each id of a row with a temperature.
    Errors: none; a logit that is not finite marks its row wrong.
    """
    row, piece = tl.program_id(0), tl.program_id(1)
    token = piece * PIECE + tl.arange(0, PIECE)
    inside = token < VOCAB
    x = tl.load(logits + row.to(tl.int64) * VOCAB + token, mask=inside, other=0.0)
    temperature = tl.load(temperatures + row)
    warm = temperature > 0
    score = tl.math.div_rn(x, tl.broadcast_to(tl.where(warm, temperature, 1.0), x.shape))
    left = inside
    if FILTERED:
        key, edge = sortable(score), tl.load(edges + row)
        left &= (key > edge) | ((key == edge) & (token <= tl.load(cutoffs + row)))
    if warm:
        score += gumbel(noise_bits(piece * (PIECE // 4), keys + row * 4, PIECE // 4))
    score = tl.where(left & (x == x), score, float("-inf"))
    best = tl.max(score, 0)
    place = row * pieces + piece
    tl.store(best_scores + place, best)
    tl.store(best_ids + place, tl.min(tl.where(left & (score == best), token, VOCAB), 0))
    tl.store(wrong + place, tl.max(tl.where(x - x == 0, 0, 1), 0))


@triton.jit
def choose_kernel(
    best_scores, best_ids, wrong, out, pieces, VOCAB: tl.constexpr, BLOCK: tl.constexpr
):
    """A program picks the best of one row's pieces; the lowest id of equals.

    Grid: (rows). Tile: [BLOCK], `pieces` rounded up to a power of two. Shapes: as `score_kernel`
    writes them; out [n] int64. Roofline: latency. Errors: none; a wrong row gives −1.
    """
    row = tl.program_id(0)
    piece = tl.arange(0, BLOCK)
    inside = piece < pieces
    place = row * pieces + piece
    score = tl.load(best_scores + place, mask=inside, other=float("-inf"))
    token = tl.load(best_ids + place, mask=inside, other=VOCAB)
    bad = tl.max(tl.load(wrong + place, mask=inside, other=0), 0)
    first = tl.min(tl.where(score == tl.max(score, 0), token, VOCAB), 0)
    tl.store(out + row, tl.where((bad > 0) | (first >= VOCAB), -1, first).to(tl.int64))


def adjust_logits(logits: Tensor, draws: DrawTable) -> None:
    """See `kernels.reference.sampling`."""
    check_device("logits", logits)
    if draws.rows and draws.adjusted:
        adjust_kernel[(draws.rows,)](
            logits,
            draws.ids,
            draws.values,
            draws.starts,
            draws.penalties,
            draws.rows,
            VOCAB=logits.shape[1],
            BLOCK=_ENTRIES,
            num_warps=4,
            enable_fp_fusion=False,
        )


def sample(logits: Tensor, draws: DrawTable) -> Tensor:
    """See `kernels.reference.sampling`."""
    check_device("logits", logits)
    rows, vocab = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows == 0:
        return out
    edges, cutoffs = select(logits, draws) if draws.filtered else (draws.keys, draws.keys)
    size = _PIECE if not INTERPRETED else min(_PIECE, max(4, triton.next_power_of_2(vocab)))
    pieces = triton.cdiv(vocab, size)
    best_scores = torch.empty(rows, pieces, device=logits.device)
    best_ids, wrong = torch.empty(2, rows, pieces, dtype=torch.int32, device=logits.device)
    score_kernel[(rows, pieces)](
        logits,
        draws.keys,
        draws.temperatures,
        edges,
        cutoffs,
        best_scores,
        best_ids,
        wrong,
        pieces,
        VOCAB=vocab,
        PIECE=size,
        FILTERED=draws.filtered,
        num_warps=8,
        enable_fp_fusion=False,
    )
    choose_kernel[(rows,)](
        best_scores,
        best_ids,
        wrong,
        out,
        pieces,
        VOCAB=vocab,
        BLOCK=triton.next_power_of_2(pieces),
        num_warps=1,
    )
    return out
