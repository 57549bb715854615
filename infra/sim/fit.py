"""What two public traces are like, in a few numbers: requests of their kind without the traces.

Lengths and pauses are mixtures of lognormal distributions, with a least and a most value; a session
ends after each turn with the same chance. The parts were chosen so that `workload.generated` meets
what was measured on the traces, and the tests hold it to that: Mooncake's conversation trace
(FAST'25 release, 12,031 requests) with a system prompt that all share, sessions whose prompts grow,
and the share of blocks that an infinite cache would hit; Azure's conversation trace (2023, 19,366
requests), which names no sessions. Sans-IO.
"""

from bisect import bisect_left
from dataclasses import dataclass
from math import erf, exp, log, sqrt

from firstlight.infra.sim.workload import Fitted

SAMPLES = 1024
"""Of each distribution, evenly spread over its quantiles."""
_GRID = 4096


@dataclass(frozen=True, slots=True)
class Part:
    """A lognormal distribution, and how much of the whole it is."""

    weight: float
    median: float
    sigma: float
    """Of the logarithm."""

    def below(self, value: float) -> float:
        """Its share below a value."""
        return (1.0 + erf(log(value / self.median) / (self.sigma * sqrt(2.0)))) / 2.0


@dataclass(frozen=True, slots=True)
class Mixture:
    """Some of them, cut off at both ends."""

    parts: tuple[Part, ...]
    least: float
    most: float

    def __post_init__(self) -> None:
        """Raises `ValueError` unless 0 < least < most."""
        if not 0.0 < self.least < self.most:
            raise ValueError(f"least {self.least:g} and most {self.most:g} leave no room")

    def below(self, value: float) -> float:
        """The share of all below a value, before the ends are cut off."""
        whole = sum(part.weight for part in self.parts)
        return sum(part.weight * part.below(value) for part in self.parts) / whole

    def samples(self, count: int = SAMPLES) -> tuple[float, ...]:
        """So many values, each the middle of an equal share; rising."""
        step = log(self.most / self.least) / _GRID
        grid = [self.least * exp(step * place) for place in range(_GRID + 1)]
        shares = [self.below(value) for value in grid]
        return tuple(
            grid[min(_GRID, bisect_left(shares, (place + 0.5) / count))] for place in range(count)
        )


def tokens(mixture: Mixture) -> tuple[int, ...]:
    """As whole tokens."""
    return tuple(round(value) for value in mixture.samples())


def turns(ends: float) -> tuple[int, ...]:
    """How many requests sessions have, if each is the last with this chance."""
    return tuple(
        1 + int(log(1.0 - (place + 0.5) / SAMPLES) / log(1.0 - ends)) for place in range(SAMPLES)
    )


MOONCAKE = Fitted(
    first_tokens=tokens(
        Mixture((Part(0.17, 950.0, 0.1), Part(0.83, 7600.0, 1.05)), 891.0, 126_000.0)
    ),
    grown_tokens=tokens(Mixture((Part(0.8, 400.0, 0.8), Part(0.2, 6000.0, 0.9)), 1.0, 60_000.0)),
    answer_tokens=tokens(Mixture((Part(0.27, 60.0, 1.3), Part(0.73, 405.0, 0.32)), 1.0, 2000.0)),
    turns=turns(1 / 1.63),
    gap_s=Mixture((Part(1.0, 123.0, 1.0),), 9.0, 3000.0).samples(),
    sessions_per_s=7373 / 3537,
    common_blocks=1,
)
AZURE = Fitted(
    first_tokens=tokens(
        Mixture(
            (Part(0.42, 380.0, 0.6), Part(0.38, 1100.0, 0.08), Part(0.20, 2700.0, 0.45)),
            3.0,
            4145.0,
        )
    ),
    grown_tokens=(1,),
    answer_tokens=tokens(Mixture((Part(0.67, 91.0, 0.5), Part(0.33, 408.0, 0.07)), 3.0, 1000.0)),
    turns=(1,),
    gap_s=(60.0,),
    sessions_per_s=19_366 / 3504,
    common_blocks=0,
)
