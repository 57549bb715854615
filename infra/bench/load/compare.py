"""How two servers compare: ratios, and how sure they are.

Sans-IO. Both had the same schedule, so requests of the same place are compared. Requests that are
near in time met the same queue, so they are not independent: what is drawn again (bootstrap) are
pieces of consecutive requests, the same ones for both sides, `PIECES` of each pair of blocks.
An interval that holds 1 shows no difference.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from firstlight.infra.bench.load.figures import DIGITS, Floats, Sla
from firstlight.infra.bench.load.records import Record

PIECES = 16
DRAWS = 1000
CONFIDENCE = 0.95
_DIGITS = DIGITS + 1


@dataclass(frozen=True, slots=True)
class Block:
    """One run of one side."""

    records: Sequence[Record]
    duration_s: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """A over B."""

    name: str
    a: float
    b: float
    ratio: float
    low: float
    high: float
    """`CONFIDENCE` of what the ratio might have been lies between."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A few consecutive requests of one side: what counts of them."""

    ttft_ms: Floats
    tpot_ms: Floats
    e2e_ms: Floats
    tokens: float
    met: float
    ended: float
    duration_s: float


def ratios(pairs: Sequence[tuple[Block, Block]], sla: Sla, seed: int) -> list[Ratio]:
    """A over B, over pairs of blocks; what one of them has no value of is left out."""
    sides = tuple([piece for pair in pairs for piece in _pieces(pair[i], sla)] for i in (0, 1))
    count = len(sides[0])
    if not count:
        return []
    random = np.random.default_rng(seed)
    draws = [random.integers(0, count, count).tolist() for _ in range(DRAWS)]
    found = []
    for name, measure in _MEASURES.items():
        a, b = (measure(side) for side in sides)
        if a is None or not b:
            continue
        drawn = [_drawn(measure, sides, draw) for draw in draws]
        there = [value for value in drawn if value is not None]
        if there:
            tail = (1 - CONFIDENCE) / 2 * 100
            low, high = np.percentile(there, (tail, 100 - tail))
            told = (a, b, a / b, low, high)
            found.append(Ratio(name, *(round(float(value), _DIGITS) for value in told)))
    return found


def _drawn(
    measure: "_Measure",
    sides: Sequence[Sequence[_Piece]],
    draw: Sequence[int],
) -> float | None:
    a, b = (measure([side[index] for index in draw]) for side in sides)
    return None if a is None or not b else a / b


def _pieces(block: Block, sla: Sla) -> list[_Piece]:
    """Cut by index and not by what came of them, so that both sides' pieces are the same."""
    size = max(1, -(-len(block.records) // PIECES))
    cuts = range(0, len(block.records), size)
    parts = [block.records[cut : cut + size] for cut in cuts]
    return [_piece(part, block.duration_s * len(part) / len(block.records), sla) for part in parts]


def _piece(records: Sequence[Record], duration_s: float, sla: Sla) -> _Piece:
    answered = [record for record in records if record.answered]
    timings = [record.timing for record in answered]
    return _Piece(
        ttft_ms=np.array([timing.ttft_ms for timing in timings]),
        tpot_ms=np.array([t.tpot_ms for t in timings if t.tpot_ms is not None]),
        e2e_ms=np.array([record.e2e_ms for record in answered]),
        tokens=sum(record.tokens_out for record in answered),
        met=sum(sla.holds(record) for record in records),
        ended=sum(record.ended_s is not None for record in records),
        duration_s=duration_s,
    )


_Measure = Callable[[Sequence[_Piece]], float | None]


def _percentile(of: Callable[[_Piece], Floats], percent: float) -> _Measure:
    def measure(pieces: Sequence[_Piece]) -> float | None:
        values = np.concatenate([of(piece) for piece in pieces])
        return float(np.percentile(values, percent)) if values.size else None

    return measure


def _share(of: Callable[[_Piece], float], by: Callable[[_Piece], float]) -> _Measure:
    def measure(pieces: Sequence[_Piece]) -> float | None:
        whole = sum(by(piece) for piece in pieces)
        return sum(of(piece) for piece in pieces) / whole if whole > 0 else None

    return measure


_MEASURES: dict[str, _Measure] = {
    "ttft_p50_ms": _percentile(lambda p: p.ttft_ms, 50),
    "ttft_p95_ms": _percentile(lambda p: p.ttft_ms, 95),
    "tpot_p50_ms": _percentile(lambda p: p.tpot_ms, 50),
    "e2e_p50_ms": _percentile(lambda p: p.e2e_ms, 50),
    "tokens_out_per_s": _share(lambda p: p.tokens, lambda p: p.duration_s),
    "goodput_share": _share(lambda p: p.met, lambda p: p.ended),
}
