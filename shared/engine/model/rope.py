"""Rotary embedding: how fast each pair of values of a head turns with the position.

Three ways to stretch it over more positions than a model was first trained for are in use: all
pairs slower by a factor (`linear`), only those that turn too slowly to have seen a whole turn
(`llama3`, as Llama 3.1 was trained), or a ramp between the two with cosines and sines enlarged a
little (`yarn`, arXiv 2309.00071). GGUF files hold the outcome instead, a divisor for each pair
(`divisors`).
"""

from dataclasses import dataclass
from math import ceil, floor, log, pi

import numpy as np
from numpy.typing import NDArray

from firstlight.shared.engine.model.entries import SIZE_MAX, Entries

_THETA = 10_000.0
"""The base where a configuration gives none."""
KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeScaling:
    """How turns are made slower than the base alone says."""

    kind: str
    """linear, llama3, yarn or divisors."""
    factor: float = 1.0
    """How many times as many positions."""
    trained: int = 1
    """llama3, yarn: positions before stretching."""
    low: float = 1.0
    """Whole turns within `trained` below which a pair is slowed by all of the factor."""
    high: float = 4.0
    """Whole turns above which a pair stays as it is."""
    magnitude: float = 1.0
    """What cosines and sines are multiplied by."""
    whole: bool = True
    """yarn: the ramp begins and ends at whole pairs."""
    divisors: tuple[float, ...] = ()


def rope_from_json(entries: Entries) -> tuple[float, RopeScaling | None]:
    """Base and scaling of a `config.json`; raises `ConfigError`."""
    rope = entries.inner("rope_parameters", "rope_scaling")
    theta = (rope if "rope_theta" in rope.raw else entries).number("rope_theta", _THETA)
    for place in (rope, entries):
        if place.number("partial_rotary_factor", 1.0) != 1.0:
            raise place.wrong("partial_rotary_factor", "1: all values of a head turn")
    key = "rope_type" if "rope_type" in rope.raw else "type"
    kind = rope.text(key, "default")
    if kind not in KINDS:
        raise rope.wrong(key, f"a rotary embedding of type {', '.join(KINDS)}")
    if kind == "default":
        return theta, None
    factor = rope.number("factor")
    if factor < 1.0:
        raise rope.wrong("factor", "at least 1")
    if kind == "linear":
        return theta, RopeScaling(kind, factor)
    trained = rope.size(
        "original_max_position_embeddings",
        entries.size("original_max_position_embeddings", entries.size("max_position_embeddings")),
    )
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if not low < high:
            raise rope.wrong("low_freq_factor", f"less than high_freq_factor, {high}")
        return theta, RopeScaling(kind, factor, trained, low, high)
    low, high = rope.number("beta_slow", 1.0), rope.number("beta_fast", 32.0)
    if not low < high:
        raise rope.wrong("beta_slow", f"less than beta_fast, {high}")
    return theta, RopeScaling(
        kind,
        factor,
        trained,
        low,
        high,
        magnitude=_magnitude(rope, factor),
        whole=rope.flag("truncate", default=True),
    )


def context_of(positions: int, scaling: RopeScaling | None) -> int:
    """Positions that a model can be used for, of those that its configuration names.

    Those of yarn name the number before stretching or after it; the larger counts.
    """
    if scaling is None or scaling.kind != "yarn":
        return positions
    return min(max(positions, int(scaling.factor * scaling.trained)), SIZE_MAX)


def frequencies(theta: float, head_dim: int, scaling: RopeScaling | None) -> NDArray[np.float64]:
    """Radians a position, [head_dim / 2]: pair i turns by theta^(−2i / head_dim), scaled."""
    plain: NDArray[np.float64] = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    if scaling is None:
        return plain
    slow: NDArray[np.float64] = plain / scaling.factor
    if scaling.kind == "linear":
        return slow
    if scaling.kind == "divisors":
        return np.asarray(plain / np.array(scaling.divisors))
    if scaling.kind == "llama3":
        turns = scaling.trained * plain / (2 * pi)
        kept = np.clip((turns - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0)
        return np.asarray(slow + kept * (plain - slow))
    first, last = _ramp(theta, head_dim, scaling)
    slowed = np.clip((np.arange(head_dim // 2) - first) / (last - first), 0.0, 1.0)
    return np.asarray(plain + slowed * (slow - plain))


def _ramp(theta: float, head_dim: int, scaling: RopeScaling) -> tuple[float, float]:
    """Pairs between which yarn goes over from all of the turn to 1 / factor of it."""

    def pair(turns: float) -> float:
        return head_dim * log(scaling.trained / (turns * 2 * pi)) / (2 * log(theta))

    first, last = pair(scaling.high), pair(scaling.low)
    if scaling.whole:
        first, last = floor(first), ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    return first, last if last != first else last + 0.001


def _magnitude(rope: Entries, factor: float) -> float:
    def of(weight: float) -> float:
        return 0.1 * weight * log(factor) + 1.0

    inferred = of(1.0)
    if rope.raw.get("mscale") and rope.raw.get("mscale_all_dim"):
        inferred = of(rope.number("mscale")) / of(rope.number("mscale_all_dim"))
    return rope.number("attention_factor", inferred)
