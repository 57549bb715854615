"""What the rows of a step ask of sampling, checked once and laid out as kernels read it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

import torch
from torch import Tensor

from firstlight.kernels.checks import check_range

TEMPERATURE_MIN = 1e-5
"""A smaller temperature is 0: the largest logit wins, without noise."""


@dataclass(frozen=True)
class Draw:
    """One id to choose: all but the logits."""

    seed: int
    """uint64."""
    position: int
    """Absolute, of the id to choose."""
    choice: int = 0
    temperature: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: Sequence[tuple[int, float]] = field(default=())
    """(id, what is added to its logit), each id once."""
    seen: Sequence[int] = field(default=())
    """Distinct ids of prompt and answer, which `repetition` looks at."""
    counted: Sequence[tuple[int, float]] = field(default=())
    """(distinct id of the answer, how often it came), which presence and frequency look at."""


@dataclass(frozen=True)
class DrawTable:
    """The draws of a step, one a row of logits."""

    keys: Tensor
    """int64 [n, 4]: low and high half of the seed, position, choice; each below 2³²."""
    temperatures: Tensor
    """float32 [n]; 0: the largest logit wins."""
    top_k: Tensor
    """int32 [n]; 0 keeps all."""
    shares: Tensor
    """float64 [n, 2]: top-p, min-p."""
    penalties: Tensor
    """float32 [n, 3]: repetition, presence, frequency."""
    starts: Tensor
    """int32 [3, n + 1]: where each row's entries of biases, seen ids and counted ids begin."""
    ids: Tensor
    """int32 [entries]: of all biases, then of all that was seen, then of all that was counted."""
    values: Tensor
    """float32 [entries]: biases, zeros, counts."""
    rows: int
    vocab: int
    filtered: bool
    """Whether a row has a top-k, top-p or min-p that can leave an id out."""
    adjusted: bool
    """Whether a row has a bias or a penalty."""


def draw_table(
    draws: Sequence[Draw], vocab: int, *, device: torch.device | str = "cpu"
) -> DrawTable:
    """Checks that every number has a meaning and every id is one of the vocabulary.

    Raises:
        ValueError: names the draw and the number that has none.

    """
    for index, draw in enumerate(draws):
        _check(f"draws[{index}]", draw, vocab)
    entries: list[tuple[int, float]] = []
    starts: list[list[int]] = []
    for pick in (_biases, _seen, _counted):
        own = [len(entries)]
        for draw in draws:
            entries += pick(draw)
            own.append(len(entries))
        starts.append(own)

    def column(values: Sequence[object], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(device)

    greedy = [draw.temperature < TEMPERATURE_MIN for draw in draws]
    return DrawTable(
        keys=column(
            [(d.seed & 0xFFFFFFFF, d.seed >> 32, d.position, d.choice) for d in draws], torch.int64
        ).view(-1, 4),
        temperatures=column(
            [0.0 if cold else d.temperature for d, cold in zip(draws, greedy, strict=True)],
            torch.float32,
        ),
        top_k=column([d.top_k if d.top_k < vocab else 0 for d in draws], torch.int32),
        shares=column([(d.top_p, d.min_p) for d in draws], torch.float64).view(-1, 2),
        penalties=column(
            [(d.repetition, d.presence, d.frequency) for d in draws], torch.float32
        ).view(-1, 3),
        starts=column(starts, torch.int32),
        ids=column([token for token, _ in entries], torch.int32),
        values=column([value for _, value in entries], torch.float32),
        rows=len(draws),
        vocab=vocab,
        filtered=any(
            not cold and (0 < d.top_k < vocab or d.top_p < 1 or d.min_p > 0)
            for d, cold in zip(draws, greedy, strict=True)
        ),
        adjusted=bool(entries),
    )


def _biases(draw: Draw) -> Sequence[tuple[int, float]]:
    return draw.bias


def _seen(draw: Draw) -> Sequence[tuple[int, float]]:
    return [] if draw.repetition == 1.0 else [(token, 0.0) for token in draw.seen]


def _counted(draw: Draw) -> Sequence[tuple[int, float]]:
    return draw.counted if draw.presence or draw.frequency else ()


def _check(name: str, draw: Draw, vocab: int) -> None:
    check_range(f"{name}.seed", draw.seed, 0, 2**64 - 1)
    check_range(f"{name}.position", draw.position, 0, 2**32 - 1)
    check_range(f"{name}.choice", draw.choice, 0, 2**32 - 1)
    check_range(f"{name}.temperature", draw.temperature, 0.0, 100.0)
    check_range(f"{name}.top_k", draw.top_k, 0, 2**31 - 1)
    check_range(f"{name}.top_p", draw.top_p, 5e-324, 1.0)
    check_range(f"{name}.min_p", draw.min_p, 0.0, 1.0)
    check_range(f"{name}.repetition", draw.repetition, 0.01, 100.0)
    check_range(f"{name}.presence", draw.presence, -2.0, 2.0)
    check_range(f"{name}.frequency", draw.frequency, -2.0, 2.0)
    for part, pairs in (
        ("bias", draw.bias),
        ("seen", [(token, 0.0) for token in draw.seen]),
        ("counted", draw.counted),
    ):
        ids = [token for token, _ in pairs]
        if len(set(ids)) < len(ids):
            raise ValueError(f"{name}.{part} names an id twice, expected each once")
        for token, value in pairs:
            check_range(f"{name}.{part}", token, 0, vocab - 1)
            if not isfinite(value):
                raise ValueError(f"{name}.{part} has {value} for {token}, expected a finite number")
