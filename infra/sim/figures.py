"""What is told of a run. A request that was refused is a miss: it took for ever. Sans-IO."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite

from firstlight.infra.sim.simulation import Run


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run, or of several together."""

    requests: int
    refused: int
    """Those without an answer, whyever."""
    ttft_p50_ms: float
    ttft_p95_ms: float
    ttft_p99_ms: float
    e2e_p50_ms: float
    e2e_p95_ms: float
    hit_rate: float
    """Prompt tokens that were cached, of those that were answered."""
    away: float
    """Share of answered requests that a core of another region served."""
    busy: tuple[float, ...]
    """Share of the time in which each region's cores ran steps."""
    uneven: float = 1.0
    """Requests at the core that had most, over the mean of all cores; the mean of the runs."""
    reasons: tuple[tuple[str, int], ...] = ()
    """Why requests were refused."""

    def as_object(self) -> dict[str, object]:
        """For JSON, which has no infinity: a percentile among the misses is null."""
        told = {name: getattr(self, name) for name in self.__slots__}
        for name, value in told.items():
            if isinstance(value, float):
                told[name] = round(value, 4) if isfinite(value) else None
        told["busy"] = [round(share, 4) for share in self.busy]
        told["reasons"] = dict(self.reasons)
        return told


def rank(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed; of none, inf."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else inf


def figures(runs: Sequence[Run]) -> Figures:
    """Of all requests of these runs."""
    served = [one for run in runs for one in run.served]
    good = [one for one in served if not one.refused]
    ttft, e2e = [one.ttft_ms for one in served], [one.e2e_ms for one in served]
    prompts = sum(one.prompt_tokens for one in good)
    regions = range(len(runs[0].busy)) if runs else range(0)
    reasons = Counter(one.refused for one in served if one.refused)
    return Figures(
        requests=len(served),
        refused=len(served) - len(good),
        ttft_p50_ms=rank(ttft, 0.50),
        ttft_p95_ms=rank(ttft, 0.95),
        ttft_p99_ms=rank(ttft, 0.99),
        e2e_p50_ms=rank(e2e, 0.50),
        e2e_p95_ms=rank(e2e, 0.95),
        hit_rate=sum(one.cached_tokens for one in good) / prompts if prompts else 0.0,
        away=sum(one.region != one.origin for one in good) / len(good) if good else 0.0,
        busy=tuple(sum(run.busy[region] for run in runs) / len(runs) for region in regions),
        uneven=sum(_uneven(run.held) for run in runs) / len(runs) if runs else 1.0,
        reasons=tuple(sorted(reasons.items())),
    )


def _uneven(held: Sequence[float]) -> float:
    return max(held) * len(held) / sum(held) if sum(held) else 1.0
