"""What a measurement prints: a table for people, and one object for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

from firstlight.infra.bench.engine.figures import Figures
from firstlight.infra.bench.engine.measure import Measured, Report
from firstlight.infra.bench.engine.scenarios import SCENARIOS

_HIGHER = "tokens_per_s"
_DIGITS = 3


def as_object(report: Report, perplexities: Mapping[str, float]) -> dict[str, Any]:
    """What `--json` prints of one server; what did not run is null.

    `perplexities`: by class of weights, `bf16` first; the ratio is of the last one to it.
    """
    scenarios = {
        name: _scenario(report.scenarios[name]) if name in report.scenarios else None
        for name in SCENARIOS
    }
    return {
        "class": report.numerics_class,
        "invariant": report.invariant,
        "perplexity_ratio": ratio(perplexities),
        "perplexity": {name: round(value, 4) for name, value in perplexities.items()} or None,
        **scenarios,
        "memory_mb": (report.memory_mb or {}).get("rss"),
        "memory": report.memory_mb,
    }


def ratio(perplexities: Mapping[str, float]) -> float | None:
    """Of the last to the first; None of nothing."""
    values = list(perplexities.values())
    return round(values[-1] / values[0], 5) if values else None


def _scenario(measured: Measured) -> dict[str, Any]:
    """Medians, failures, and every repeat. `foreign_cpu` is the worst repeat's."""
    repeats = [_rounded(run) for run in measured.runs]
    foreign = [run["foreign_cpu"] for run in repeats if run["foreign_cpu"] is not None]
    told = _rounded(measured.medians) | {"foreign_cpu": max(foreign, default=None)}
    return {**told, "failed": measured.failed, "repeats": repeats}


def _rounded(figures: Figures) -> Figures:
    return {n: None if value is None else round(value, _DIGITS) for n, value in figures.items()}


def table(ours: Report, peer: Report | None) -> list[str]:
    """A line a figure: the median, and the least and most of the repeats."""
    heads = ["scenario", "figure", "ours"] + (["peer", "ours / peer"] if peer else [])
    rows = [heads]
    for name, measured in ours.scenarios.items():
        other = peer.scenarios.get(name) if peer else None
        figures = dict.fromkeys([*measured.medians, *(other.medians if other else ())])
        for figure in figures:
            rows.append([name, figure, _spread(measured, figure)])
            if peer:
                rows[-1] += [_spread(other, figure), _against(measured, other, figure)]
        rows.append([name, "failed", str(measured.failed)])
        if peer:
            rows[-1] += [str(other.failed) if other else "–", ""]
    for name in dict.fromkeys([*(ours.memory_mb or ()), *((peer and peer.memory_mb) or ())]):
        rows.append(["memory", f"{name} MB", _memory(ours, name)])
        if peer:
            rows[-1] += [_memory(peer, name), ""]
    rows.append(["invariant", "", _said(ours.invariant)])
    if peer:
        rows[-1] += [_said(peer.invariant), ""]
    return aligned(rows)


def _spread(measured: Measured | None, figure: str) -> str:
    values = [run.get(figure) for run in measured.runs] if measured else []
    there = [value for value in values if value is not None]
    if measured is None or not there:
        return "–"
    middle = measured.medians[figure]
    digits = 3 if figure == "foreign_cpu" else 1
    return f"{middle:.{digits}f} ({min(there):.{digits}f}–{max(there):.{digits}f})"


def _against(ours: Measured, peer: Measured | None, figure: str) -> str:
    one, other = ours.medians.get(figure), peer.medians.get(figure) if peer else None
    if one is None or not other or figure == "foreign_cpu":
        return ""
    better = one > other if figure == _HIGHER else one < other
    return f"{one / other:.2f}{' better' if better else ''}"


def _memory(report: Report, name: str) -> str:
    value = (report.memory_mb or {}).get(name)
    return "–" if value is None else f"{value:.0f}"


def _said(value: bool | None) -> str:
    return "not asked" if value is None else "yes" if value else "no"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of as many cells each, as lines whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
