"""How long steps take that nobody computes: a table, measured or taken from what others published.

    ms = points(sampled rows) + token_ms · prefill tokens + pair_ms · tokens that those look at
         + context_ms · tokens of context that sampled rows read

A sampled row is one whose logits are wanted: a decode, a draft, or the last of a prompt.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from firstlight.shared.drafting.prefilltimes import pairs
from firstlight.shared.engine.plan import StepPlan
from firstlight.shared.errors import ConfigError

_BLOCK_BYTES_MAX = 64 << 20
"""Of 16 tokens; a 405B's in 16 bits has 8 MiB."""


@dataclass(frozen=True, slots=True)
class StepTable:
    """How long a step takes, and how large a block is on its way to other nodes."""

    points: tuple[tuple[int, float], ...]
    """(sampled rows, ms), both ascending; straight lines between, and on beyond the last two."""
    token_ms: float | None = None
    """Of a prefill token; None: as much as a sampled row."""
    pair_ms: float = 0.0
    """Of each token that a prefill token looks at."""
    context_ms: float = 0.0
    """Of each token of a sequence that is sampled in a step."""
    block_copy_ms: float = 0.0
    """Of a block on its way to or from the host tier."""
    block_bytes: int = 0
    """Of a block's KV, where it is to be fetched by others."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a table that says nothing, or that more rows take less time."""
        rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(self.points))
        if not (self.points and rising and self.points[0][0] >= 1 and self.points[0][1] >= 0):
            raise ConfigError(
                f"a step-time table of {self.points}: at least one (rows, ms), ascending"
            )
        if not all(isfinite(ms) for _, ms in self.points):
            raise ConfigError(f"a step-time table of {self.points}: a step has to end")
        for name in ("token_ms", "pair_ms", "context_ms", "block_copy_ms"):
            value = getattr(self, name) or 0.0
            if not (value >= 0 and isfinite(value)):
                raise ConfigError(f"a step-time table's {name} is {value}, not from 0 on")
        if not 0 <= self.block_bytes <= _BLOCK_BYTES_MAX:
            raise ConfigError(
                f"a step-time table's block_bytes is {self.block_bytes}, not 0…{_BLOCK_BYTES_MAX}"
            )

    @classmethod
    def linear(cls, fixed_ms: float, row_ms: float, *, block_copy_ms: float = 0.0) -> "StepTable":
        """ms = fixed + row · rows."""
        points = ((1, fixed_ms + row_ms), (2, fixed_ms + 2 * row_ms))
        return cls(points, block_copy_ms=block_copy_ms)

    def ms(self, rows: int) -> float:
        """Of so many sampled rows; fewer than the first point has take as long as it."""
        points = self.points
        if rows <= points[0][0] or len(points) == 1:
            return points[0][1]
        reached = next((place for place, (size, _) in enumerate(points) if rows <= size), -1)
        (low, low_ms), (high, high_ms) = points[reached - 1 :][:2] if reached > 0 else points[-2:]
        return low_ms + (high_ms - low_ms) * (rows - low) / (high - low)

    def step_ms(self, plan: StepPlan) -> float:
        """Of a whole step, without copies."""
        sampled = prefill = looked_at = context = 0
        for one in plan.sequences:
            before = len(one.ids) - len(one.draws)
            sampled += len(one.draws)
            prefill += before
            looked_at += pairs(before, one.start)
            context += (one.start + len(one.ids)) * bool(one.draws)
        return self.work_ms(sampled, prefill, looked_at, context)

    def work_ms(self, sampled: int, prefill: int, looked_at: int, context: int) -> float:
        """Of a step with so many rows of both kinds, so many tokens that its prefill looks at, and
        so many that its sampled rows read."""
        if self.token_ms is None:
            return self.ms(sampled + prefill)
        rest_ms = self.token_ms * prefill + self.pair_ms * looked_at + self.context_ms * context
        return self.ms(sampled) + rest_ms


H100_70B = StepTable(
    points=((1, 18.4), (50, 18.4)),
    token_ms=0.0559,
    pair_ms=8.7e-6,
    context_ms=2.5e-5,
    block_copy_ms=0.1,
    block_bytes=16 * 163_840,
)
"""A Llama 70B in FP8 on two H100 (80 GB).

NVIDIA NIM LLM Benchmarking 1.0.0, "Performance", Llama-3.3-70b-instruct 1.8.0, 2 x H100, fp8 TP2:
first token of 500 and 5,000 tokens after 47.77 and 406.77 ms, which give both prefill rates; 18.58,
21.83, 38.75, 59.73 ms between tokens at 1, 5, 25, 50 streams of 5,000 in and 500 out. Without the
prefills among them, and with keys and values of 163,840 bytes a token (FP8) read at 2 · 3.35 TB/s,
those leave 18 ms for any number of rows. The copy over PCIe at 26 GB/s is arithmetic.
"""

H100_8B = StepTable(
    points=((1, 4.63), (50, 4.7), (100, 5.2), (150, 6.3), (200, 7.9), (250, 10.2)),
    token_ms=0.0125,
    pair_ms=1.75e-6,
    context_ms=3.9e-5,
    block_copy_ms=0.08,
    block_bytes=16 * 131_072,
)
"""A Llama 8B on one H100 (80 GB).

From the same page, Llama-3.1-8b-instruct 1.8.0, the first table: 4.63, 5.91, 7.57, 9.81, 12.65,
16.14 ms between tokens at 1, 50, 100, 150, 200, 250 streams. Its throughputs say 200 tokens out,
and 200 in are assumed; keys and values are 131,072 bytes a token, read at 3.35 TB/s; a prefill
token costs what lets the rest rise evenly, 1.3 PFLOP/s. Pairs and copies are arithmetic as above.
"""

SMOLLM2_CPU = StepTable(
    points=((1, 6.9), (2, 7.3), (4, 9.4), (8, 14.2), (16, 25.8), (32, 51.3), (64, 103.3)),
    token_ms=0.79,
    pair_ms=7.7e-4,
    context_ms=3.7e-3,
    block_copy_ms=0.03,
    block_bytes=368_640,
)
"""SmolLM2-135M (Q4_1) with kernels `cpu` on two shared cores of an AMD EPYC (Zen 3, AVX2).

Measured by `python -m firstlight.infra.bench.step_table` on 30 November 2026; the table gives each
of its 17 steps within 16 %.
"""

TABLES = {"h100-8b": H100_8B, "h100-70b": H100_70B, "smollm2-cpu": SMOLLM2_CPU}
"""Those that can be asked for by name."""
