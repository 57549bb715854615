"""Plots as inline SVG: no script, no font, no file from anywhere else.

Sans-IO. Numbers in, markup out; every text is escaped. Dots and steps are thinned to a bound, so
that a long run opens as fast as a short one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Literal

Point = tuple[float, float]
DOTS_MAX, STEPS_MAX = 2000, 240
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 64, 24, 14, 44
_COLORS = 6
"""Classes `c0` … of the page's style."""


@dataclass(frozen=True, slots=True)
class Series:
    """What has one name and color."""

    name: str
    points: Sequence[Point]
    kind: Literal["dots", "line"] = "line"


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction: what it shows, from where to where, and how it is divided."""

    label: str
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """From 0 to 1; what lies outside is put on the border."""
        scale = _log if self.log else float
        low, high = scale(self.low), scale(self.high)
        return min(1.0, max(0.0, (scale(value) - low) / (high - low))) if high > low else 0.0

    @property
    def ticks(self) -> list[float]:
        """Round values within."""
        if self.log:
            powers = range(floor(_log(self.low)), ceil(_log(self.high)) + 1)
            each = (1, 2, 5) if len(powers) <= 4 else (1,)
            marks = [factor * 10.0**power for power in powers for factor in each]
        else:
            step = _round_step((self.high - self.low) / 5)
            first = ceil(self.low / step)
            marks = [(first + n) * step for n in range(12)]
        return [mark for mark in marks if self.low <= mark <= self.high * (1 + 1e-9)]


def plot(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """One plot with axes, grid and legend. Without points it says so."""
    shown = [one for one in series if one.points]
    parts = [
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{escape(title)}">'
    ]
    if not shown:
        parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT / 2}" class="mid">nothing to show</text>')
    else:
        parts += _grid(x, y)
        for number, one in enumerate(shown):
            draw = _dots if one.kind == "dots" else _line
            parts.append(draw(one.points, x, y, number % _COLORS))
    legend = "".join(
        f'<span class="k{number % _COLORS}">{escape(one.name)}</span>'
        for number, one in enumerate(shown)
    )
    return "".join([*parts, f'</svg><div class="legend">{legend}</div></figure>'])


def cdf(name: str, values: Sequence[float]) -> Series:
    """The share of values up to each."""
    ordered = sorted(values)
    last = len(ordered) - 1
    picked = sorted({round(n * last / STEPS_MAX) for n in range(STEPS_MAX + 1)}) if ordered else []
    return Series(name, [(ordered[index], (index + 1) / len(ordered)) for index in picked])


def spanning(label: str, values: Sequence[float], *, log: bool = False) -> Axis:
    """An axis for all of them: from 0, or, if it is logarithmic, between round values."""
    high = max(values, default=1.0)
    if not log:
        return Axis(label, 0.0, high if high > 0 else 1.0)
    low = max(min(values, default=0.1), 0.01)
    marks = [factor * 10.0**power for power in range(-3, 10) for factor in (1, 2, 5)]
    begin = max(mark for mark in marks if mark <= low)
    return Axis(
        label, begin, min((m for m in marks if m >= high and m > begin), default=high), True
    )


def _grid(x: Axis, y: Axis) -> list[str]:
    parts = []
    for tick in x.ticks:
        at = _x(x, tick)
        parts.append(f'<line x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" class="g"/>')
        parts.append(f'<text x="{at}" y="{HEIGHT - BOTTOM + 16}" class="mid">{tick:g}</text>')
    for tick in y.ticks:
        at = _y(y, tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}" class="g"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4}" class="end">{tick:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" class="mid">{escape(x.label)}</text>')
    turned = f'transform="rotate(-90 14 {HEIGHT / 2})"'
    parts.append(f'<text x="14" y="{HEIGHT / 2}" class="mid" {turned}>{escape(y.label)}</text>')
    return parts


def _dots(points: Sequence[Point], x: Axis, y: Axis, color: int) -> str:
    step = max(1, -(-len(points) // DOTS_MAX))
    return "".join(
        f'<circle cx="{_x(x, at)}" cy="{_y(y, value)}" r="2" class="d{color}"/>'
        for at, value in points[::step]
    )


def _line(points: Sequence[Point], x: Axis, y: Axis, color: int) -> str:
    step = max(1, -(-len(points) // DOTS_MAX))
    placed = " ".join(f"{_x(x, at)},{_y(y, value)}" for at, value in points[::step])
    return f'<polyline points="{placed}" class="l{color}"/>'


def _x(axis: Axis, value: float) -> float:
    return round(LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT), 1)


def _y(axis: Axis, value: float) -> float:
    return round(HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM), 1)


def _log(value: float) -> float:
    return log10(max(value, 1e-9))


def _round_step(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** floor(_log(step))
    return next((factor for factor in (1, 2, 5) if factor * power >= step), 10) * power
