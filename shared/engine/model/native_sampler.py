"""Rows sampled in one call by the C++ kernels, with the ids of `shared.sampling`.

Draws go there as arrays: a record each, and the lists that penalties look at, draw after draw.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from firstlight.kernels.cpu import extension
from firstlight.shared.sampling import Draw, Floats, Ids, greedy

if TYPE_CHECKING:
    from firstlight.kernels.cpu._native import Decoder

_NO_IDS, _NO_COUNTS = np.empty(0, np.int64), np.empty(0, np.float32)


def native_pick(decoder: "Decoder", logits: Floats, draws: Sequence[Draw]) -> Sequence[int]:
    """Ids of rows of raw logits, −1 for one that is not finite.

    Raises:
        ArithmeticError, ValueError: a row that cannot be sampled.

    """
    native = extension.native()
    arrays = _arrays(draws, native.DRAW)
    ids: list[int] = decoder.sample(logits=np.ascontiguousarray(logits), **arrays).tolist()
    if native.NONE_IS_LEFT in ids:
        raise ValueError("penalties, temperature and filters leave no id")
    return ids


def _arrays(draws: Sequence[Draw], record: "np.dtype[np.void]") -> dict[str, NDArray[Any]]:
    """Arguments of `Decoder.sample`, by name; `record` is what it takes for a draw."""
    records: list[tuple[float, ...]] = []
    biases: list[tuple[int, float]] = []
    seen_ids, counted_ids, all_counts = [_NO_IDS], [_NO_IDS], [_NO_COUNTS]
    for draw in draws:
        sampling, seen, (counted, counts) = draw.sampling, _seen(draw), _counts(draw)
        records.append(
            (
                draw.seed,
                sampling.top_p,
                sampling.min_p,
                sampling.top_k,
                draw.position,
                draw.choice,
                0.0 if greedy(sampling) else sampling.temperature,
                sampling.repetition_penalty,
                sampling.presence_penalty,
                sampling.frequency_penalty,
                len(sampling.logit_bias),
                len(seen),
                len(counted),
            )
        )
        biases += sampling.logit_bias
        seen_ids.append(seen)
        counted_ids.append(counted)
        all_counts.append(counts)
    return {
        "draws": np.array(records, record),
        "bias_ids": np.array([token for token, _ in biases], np.int64),
        "biases": np.array([bias for _, bias in biases], np.float32),
        "seen": np.concatenate(seen_ids),
        "counted": np.concatenate(counted_ids),
        "counts": np.concatenate(all_counts),
    }


def _seen(draw: Draw) -> Ids:
    """What the repetition penalty looks at."""
    if draw.sampling.repetition_penalty == 1.0:
        return _NO_IDS
    return draw.history.seen(draw.drafted)


def _counts(draw: Draw) -> tuple[Ids, Floats]:
    """What presence and frequency penalties look at."""
    sampling = draw.sampling
    if not (sampling.presence_penalty or sampling.frequency_penalty):
        return _NO_IDS, _NO_COUNTS
    return draw.history.counts(draw.drafted)
