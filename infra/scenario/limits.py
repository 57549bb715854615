"""Whether a row kept what it had to keep, and what it is held against. Sans-IO."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from firstlight.infra.scenario.figures import Row
from firstlight.infra.scenario.hints_model import tokens_per_s
from firstlight.infra.scenario.scenario import Beyond, Bound, LoadSpec


@dataclass(frozen=True, slots=True)
class Judged:
    """A row, held against its limits."""

    spec: LoadSpec
    row: Row
    bound: float | None
    """None: there is none, or what it is taken from was not measured."""
    missed: tuple[str, ...]
    """A line each."""


def judged(spec: LoadSpec, rows: Mapping[str, Row]) -> Judged:
    """A row of `rows`, which holds all that were measured so far."""
    row = rows[spec.name]
    bound = None if spec.bound is None else _value(spec.bound, rows)
    return Judged(spec, row, bound, tuple(_missed(spec, rows, bound)))


def _value(bound: Bound, rows: Mapping[str, Row]) -> float | None:
    if bound.hints is not None:
        found: float | None = tokens_per_s(bound.hints)
    else:
        assert bound.row is not None
        found = rows[bound.row].figure(bound.of) if bound.row in rows else None
    return None if found is None else found * bound.times + bound.plus


def _missed(spec: LoadSpec, rows: Mapping[str, Row], bound: float | None) -> Iterator[str]:
    for name, limit in spec.limits:
        value = rows[spec.name].figure(name)
        for sign, asked in ((1, limit.at_most), (-1, limit.at_least)):
            if asked is None:
                continue
            edge = _edge(asked, name, rows, bound)
            words = "at most" if sign > 0 else "at least"
            if edge is None:
                yield f"{name}: what it is told from was not measured"
            elif value is None:
                yield f"{name}: nothing was measured, expected {words} {edge:.4g}"
            elif sign * (value - edge) > 0:
                yield f"{name}: {value:.4g}, expected {words} {edge:.4g}"


def _edge(
    asked: float | Beyond, name: str, rows: Mapping[str, Row], bound: float | None
) -> float | None:
    if not isinstance(asked, Beyond):
        return asked
    if asked.row is not None:
        told = rows[asked.row].figure(name) if asked.row in rows else None
    else:
        told = bound
    return None if told is None else told * asked.times + asked.plus
