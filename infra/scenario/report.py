"""What a scenario came to, as a table for people and one object for programs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from firstlight.infra.judge.verdict import HELD, VIOLATED, Verdict
from firstlight.infra.scenario.conducted import Conducted
from firstlight.infra.scenario.figures import FIGURES
from firstlight.infra.scenario.limits import Judged
from firstlight.infra.scenario.scenario import Scenario

SCHEMA = "firstlight.scenario/1"
DIGITS = 4


@dataclass(frozen=True, slots=True)
class Report:
    """A run that has ended."""

    heading: str
    """The command and the machine."""
    scenario: Scenario
    seed: int
    took_s: float
    found: Conducted
    verdict: Verdict | None
    """Of the judge over all histories; None: none were kept."""

    @property
    def held(self) -> bool:
        """Whether everything was done and kept."""
        judged_well = self.verdict is None or self.verdict.exit_code == HELD
        missed = any(one.missed for one in self.found.judged)
        return judged_well and not missed and not self.found.problems

    def table(self) -> Iterator[str]:
        """A line a row; columns that no row has anything of are left out."""
        judged = [one for one in self.found.judged if one.spec.shown]
        columns = [name for name in self.scenario.columns if any(_has(one, name) for one in judged)]
        bounded = any(one.spec.bound for one in judged)
        head = ["row", *columns, *(["bound"] if bounded else []), "kept"]
        cells = [head, *(_cells(one, columns, bounded=bounded) for one in judged)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for name, *values in cells:
            told = (value.rjust(width) for value, width in zip(values, widths[1:], strict=True))
            yield "  ".join((name.ljust(widths[0]), *told))

    def lines(self) -> Iterator[str]:
        """What follows the table."""
        for one in self.found.judged:
            for miss in one.missed:
                yield f"missed: {one.spec.name}: {miss}"
        for problem in self.found.problems:
            yield f"problem: {problem}"
        for name, share in self.found.shares.items():
            yield f"{name}: {share:.0%} of a CPU"
        yield f"seed {self.seed}, {self.took_s:.0f} s: {'held' if self.held else 'NOT held'}"

    def object(self) -> dict[str, Any]:
        """For programs; schema `SCHEMA`."""
        return {
            "schema": SCHEMA,
            "title": self.scenario.title,
            "heading": self.heading,
            "seed": self.seed,
            "took_s": round(self.took_s, 1),
            "held": self.held,
            "schedule": self.found.schedule,
            "rows": [_row(one) for one in self.found.judged],
            "problems": self.found.problems,
            "cpu_shares": self.found.shares,
            "judge": None if self.verdict is None else _judge(self.verdict),
        }


def _has(one: Judged, name: str) -> bool:
    return one.row.figure(name) is not None


def _cells(one: Judged, columns: Sequence[str], *, bounded: bool) -> list[str]:
    values = [one.row.figure(name) for name in columns]
    bound = [_number(one.bound)] if bounded else []
    kept = "yes" if not one.missed else "NO"
    return [one.spec.name, *map(_number, values), *bound, kept]


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value.is_integer() or abs(value) >= 1000 else f"{value:.4g}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def _row(one: Judged) -> dict[str, Any]:
    figures = {name: _rounded(one.row.figure(name)) for name in FIGURES}
    errors: dict[str, int] = {}
    for outcome in one.row.outcomes:
        if outcome.error is not None:
            errors[outcome.error] = errors.get(outcome.error, 0) + 1
    return {
        "row": one.spec.name,
        **figures,
        "bound": _rounded(one.bound),
        "missed": list(one.missed),
        "errors": errors,
    }


def _judge(verdict: Verdict) -> dict[str, Any]:
    words = {HELD: "held", VIOLATED: "violated"}
    return {
        "verdict": words.get(verdict.exit_code, "incomplete"),
        "held": list(verdict.held),
        "violations": [f"{one.invariant}: {one.what}" for one in verdict.violations],
        "missing": list(verdict.missing),
        "streams": verdict.streams,
        "processes": verdict.processes,
    }
