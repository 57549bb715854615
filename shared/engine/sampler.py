"""All rows of a step sampled: the ids of `shared.sampling`, to the bit, without a full sort.

Each row is a function of itself alone: no sum, sort or logarithm runs over more than one row, so an
id cannot depend on the rows beside it. The noise is exact but lazy. A row's best score so far
bounds what noise another id would need to win; its 32 random bits tell whether it could have that
much, and only for the handful that could is a logarithm taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from firstlight.shared.sampling import (
    Bits,
    Draw,
    Floats,
    Ids,
    greedy,
    gumbel,
    logprobs,
    noise_bits,
    nucleus,
    penalized,
    weights,
)
from firstlight.shared.types import Sampling, TokenLogprobs

Pick: TypeAlias = Callable[[Floats, Sequence[Draw]], Sequence[int]]
"""Ids of rows of raw logits [rows, vocab]: those of `sampling.sample`, and −1 for a row that is not
finite. Raises `ArithmeticError`, `IndexError` or `ValueError` for a row that cannot be sampled."""
_ALL_MAX = 1024
"""Up to so many ids the noise of all of them is taken."""
_HEAD = 256
"""Ids that top-p sorts at first; eight times as many whenever they do not suffice."""
_NOISE_MAX = 22.88
"""No G is larger: bits = 0 gives 22.87."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What became of one row: an id, or the reason that there is none."""

    id: int
    logprobs: TokenLogprobs | None = None
    error: str = ""


def pick_rows(logits: Floats, draws: Sequence[Draw]) -> list[int]:
    """The `Pick` in numpy."""
    return [
        pick(row, draw) if np.isfinite(row).all() else -1
        for row, draw in zip(logits, draws, strict=True)
    ]


def sample_rows(logits: Floats, draws: Sequence[Draw], pick: Pick = pick_rows) -> list[Sampled]:
    """One result a row of raw logits [rows, vocab]; a row that cannot be sampled fails alone."""
    assert len(logits) == len(draws), (logits.shape, len(draws))
    if not draws:
        return []
    try:
        tokens = pick(logits, draws)
        return [_sampled(*one) for one in zip(logits, draws, tokens, strict=True)]
    except (ArithmeticError, IndexError, ValueError) as error:
        if len(draws) > 1:  # one of them is wrong: each for itself
            rows = zip(logits, draws, strict=True)
            return [sample_rows(row[None], [draw], pick)[0] for row, draw in rows]
        reason = f"sampling at position {draws[0].position} failed: {error}"
        return [Sampled(-1, error=reason)]


def _sampled(logits: Floats, draw: Draw, token: int) -> Sampled:
    if token < 0:
        return Sampled(-1, error=f"logits at position {draw.position} are not finite")
    wanted = draw.sampling.logprobs
    return Sampled(token, None if wanted is None else logprobs(logits, token, wanted))


def _plain(sampling: Sampling) -> bool:
    return (
        greedy(sampling)
        and not sampling.logit_bias
        and sampling.repetition_penalty == 1.0
        and not (sampling.presence_penalty or sampling.frequency_penalty)
    )


def pick(logits: Floats, draw: Draw) -> int:
    """The id that `sampling.sample` picks from raw logits [vocab]."""
    sampling = draw.sampling
    if _plain(sampling):
        return int(logits.argmax())
    adjusted = penalized(logits, draw)
    if greedy(sampling):
        return int(adjusted.argmax())
    tempered = adjusted / np.float32(sampling.temperature)
    ids = left(tempered, sampling)
    if len(ids) <= _ALL_MAX:
        return _noisiest(tempered, ids, draw)
    return _noisiest_of_many(tempered, ids, draw)


def left(tempered: Floats, sampling: Sampling) -> Ids:
    """The set that `sampling.kept` leaves, ascending."""
    ids = np.arange(len(tempered), dtype=np.int64)
    weight = weights(tempered) if sampling.min_p > 0.0 or sampling.top_p < 1.0 else None
    if weight is not None and sampling.min_p > 0.0:
        ids = np.flatnonzero(weight >= sampling.min_p)
    if 0 < sampling.top_k < len(ids):
        ids = _largest(tempered, ids, sampling.top_k)[: sampling.top_k]
        ids.sort()
    if weight is not None and sampling.top_p < 1.0:
        ids = _nucleus_ids(tempered, weight, ids, sampling.top_p)
    return ids


def _largest(tempered: Floats, ids: Ids, count: int) -> Ids:
    """The `count` first ids by (logit descending, id ascending), and ties with the last."""
    values = tempered[ids]
    if count < len(ids):
        edge = np.partition(values, len(ids) - count)[len(ids) - count]
        inside = values >= edge
        ids, values = ids[inside], values[inside]
    return ids[np.lexsort((ids, -values))]


def _nucleus_ids(tempered: Floats, weight: npt.NDArray[np.float64], ids: Ids, top_p: float) -> Ids:
    total, head = weight[ids].sum(), _HEAD
    while True:
        front = _largest(tempered, ids, head)
        length = nucleus(weight[front], total, top_p)
        if length < len(front) or len(front) == len(ids):
            return np.sort(front[:length])
        head *= 8


def _noisiest(tempered: Floats, ids: Ids, draw: Draw) -> int:
    scores = tempered[ids] + gumbel(_bits(ids, draw))
    return int(ids[scores.argmax()])


def _noisiest_of_many(tempered: Floats, ids: Ids, draw: Draw) -> int:
    values = tempered if len(ids) == len(tempered) else tempered[ids]
    peak = values.max()
    near = ids[values >= peak - np.float32(1.0)][:_ALL_MAX]
    bound = float((tempered[near] + gumbel(_bits(near, draw))).max())
    # An id wins only if G ≥ bound − logit, up to the rounding of that sum in float32. As
    # G ≤ −log u, that needs u ≤ exp(logit − bound).
    slack = 1e-3 + 1e-6 * max(abs(bound), abs(float(peak)))
    able = values >= np.float32(bound - slack - _NOISE_MAX)
    if 2 * np.count_nonzero(able) < len(ids):
        ids, values = ids[able], values[able]
    bits = _bits(ids, draw)
    share = np.exp(values - np.float32(bound - slack - 1e-3))
    likely = bits.astype(np.float32) <= share * np.float32(2.0**32)
    ids = ids[likely]
    scores = tempered[ids] + gumbel(bits[likely])
    return int(ids[scores.argmax()])


def _bits(ids: Ids, draw: Draw) -> Bits:
    return noise_bits(ids, seed=draw.seed, position=draw.position, choice=draw.choice)
