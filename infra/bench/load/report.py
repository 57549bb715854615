"""What `--json` writes: one schema, and nothing that must be read between the lines.

The dataclasses here and in `figures.py` and `compare.py` are the schema; their docstrings say what
each field means, and docs/load.md shows one. `schema` counts up when a field changes its meaning.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from firstlight.infra.bench.load.compare import Block, Ratio
from firstlight.infra.bench.load.figures import Figures, Sla, Span, figures
from firstlight.infra.bench.load.records import Record
from firstlight.infra.bench.load.run import Run

SCHEMA = "firstlight.load/1"


@dataclass(frozen=True, slots=True)
class Asked:
    """Who was asked, and how."""

    url: str
    http: str
    api: str
    model: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """The load that was meant."""

    kind: str
    """`fixed`, `poisson` or `trace`."""
    trace: str | None
    speed: float | None
    requests: int
    duration_s: float
    """To the last send."""
    tokens_in: int
    tokens_out: int
    """Of all."""
    connections: str
    seed: int


@dataclass(frozen=True, slots=True)
class Side:
    """One server, over all of its blocks; `records` are not part of what is written as they are."""

    name: str
    """`A`, or `B` for the one that it is compared with."""
    target: Asked
    runs: list[Run] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """Of all blocks."""
        return [record for run in self.runs for record in run.records]

    def figures(self, sla: Sla) -> Figures:
        """Of all blocks together."""
        return figures(self.records, span(self.runs), sla)


@dataclass(frozen=True, slots=True)
class Report:
    """All that is told of a measurement."""

    heading: str
    """The command, the machine, the versions."""
    begun_unix_s: float
    cut_short: str | None
    """Why not all was measured."""
    schedule: Schedule
    sla: Sla
    sides: Sequence[Side]
    ratios: Sequence[Ratio] = ()
    """A over B; empty without `--against`."""

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        command, machine = self.heading.splitlines()
        return {
            "schema": SCHEMA,
            "command": command,
            "machine": machine,
            "begun_unix_s": self.begun_unix_s,
            "cut_short": self.cut_short,
            "schedule": asdict(self.schedule),
            "sides": [self._side(side) for side in self.sides],
            "ratios": [asdict(ratio) for ratio in self.ratios],
        }

    def _side(self, side: Side) -> dict[str, Any]:
        return {
            "name": side.name,
            "target": asdict(side.target),
            "figures": asdict(side.figures(self.sla)),
            "blocks": [asdict(figures(r.records, span([r]), self.sla)) for r in side.runs],
            "requests": [
                _request(number, run, record)
                for number, run in enumerate(side.runs)
                for record in run.records
            ],
        }


def span(runs: Sequence[Run]) -> Span:
    """What runs say beside their records."""
    shares = [share for run in runs for share in run.cpu_shares]
    return Span(
        planned=sum(run.planned for run in runs),
        duration_s=sum(duration_s(run) for run in runs),
        cpu_s=sum(run.cpu_s for run in runs),
        cpu_share_max=max(shares, default=None),
        outstanding_most=max((run.outstanding_most for run in runs), default=0),
        shareable_tokens=sum(run.shareable_tokens for run in runs),
        cut_short=next((run.cut_short for run in runs if run.cut_short), None),
    )


def duration_s(run: Run) -> float:
    """From the first moment of the schedule to the last answer's end, or to where it was cut."""
    ended = [record.ended_s for record in run.records if record.ended_s is not None]
    last_s = run.ended_s if run.cut_short else max(ended, default=run.ended_s)
    return max(0.0, last_s - run.begun_s)


def block(run: Run) -> Block:
    """For a comparison."""
    return Block(run.records, duration_s(run))


def _request(number: int, run: Run, record: Record) -> dict[str, Any]:
    """One request in milliseconds; `at_ms` is its planned time in the schedule."""
    timing = record.timing if record.answered else None
    tpot_ms = timing.tpot_ms if timing else None
    return {
        "block": number,
        "index": record.index,
        "at_ms": _ms(record.planned_s - run.begun_s),
        "slip_ms": None if record.slip_ms is None else round(record.slip_ms, 3),
        "cold": record.cold,
        "tokens_in": record.tokens_in,
        "tokens_cached": record.tokens_cached,
        "tokens_out": record.tokens_out,
        "ttft_ms": None if timing is None else round(timing.ttft_ms, 3),
        "tpot_ms": None if tpot_ms is None else round(tpot_ms, 3),
        "e2e_ms": round(record.e2e_ms, 3) if timing else None,
        "miss": record.miss,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
