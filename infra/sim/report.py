"""What a contest says: a table, one object, and a page with plots that opens without a network."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from math import isfinite
from typing import Any

from firstlight.infra.bench.engine.report import aligned
from firstlight.infra.bench.load.plots import Axis, Series, cdf, plot, spanning
from firstlight.infra.bench.load.report_html import head
from firstlight.infra.sim.contest import Course, Result
from firstlight.infra.sim.figures import Figures
from firstlight.infra.sim.rules import PUBLISHED
from firstlight.infra.sim.workload import offered_s

_HEADS = (
    *("rule", "TTFT p50 ms", "p95", "p99", "refused", "hits", "away", "busy", "uneven"),
    *("E2E p50 s", "in which way"),
)
PLOTTED_MAX = 6
"""Rules in one plot: ours, and the best of the others."""


@dataclass(frozen=True, slots=True)
class Told:
    """All that is reported."""

    heading: str
    course: Course
    trace: str
    seeds: tuple[int, ...]
    tune_requests: int
    results: Mapping[str, Result]

    def config(self) -> dict[str, Any]:
        """What was run, so that it can be run again."""
        setup, course = self.course.setup, self.course
        asked, speed = course.asked(self.seeds[0])
        span_s = max(one.at_s for one in asked) if asked else 0.0
        capacity_s = setup.servers * span_s
        return {
            "trace": self.trace,
            "requests": len(asked),
            "load": round(offered_s(asked, setup.spec) / capacity_s, 4) if capacity_s else None,
            "speed": round(speed, 4),
            "span_s": round(span_s, 3),
            "seeds": list(self.seeds),
            "tune_requests": self.tune_requests,
            "diurnal": course.diurnal,
            "matrix": asdict(setup.matrix),
            "cores": setup.cores,
            "edges": setup.edges,
            "core": asdict(setup.spec),
            "faults": [asdict(fault) for fault in setup.faults],
        }

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "policies": {name: _object(name, one) for name, one in self.results.items()},
            "config": self.config(),
        }


def _object(name: str, result: Result) -> dict[str, Any]:
    each = [{"seed": seed, "way": way.told, **told.as_object()} for seed, way, told in result.each]
    source = PUBLISHED[name].source if name in PUBLISHED else "shared/routing"
    return {**result.figures.as_object(), "source": source, "each": each}


def table(told: Told) -> list[str]:
    """The configuration in one line, then a row a rule, the best p95 first."""
    rows = [list(_HEADS)]
    for name, result in ordered(told.results):
        rows.append([name, *_cells(result.figures), _ways(result)])
    return [json.dumps(told.config(), separators=(", ", ": ")), "", *aligned(rows)]


def ordered(results: Mapping[str, Result]) -> list[tuple[str, Result]]:
    """The best p95 first; of equals the fewest refused."""
    return sorted(
        results.items(),
        key=lambda item: (item[1].figures.ttft_p95_ms, item[1].figures.refused, item[0]),
    )


def page(told: Told) -> str:
    """The whole file."""
    shown = _shown(told.results)
    config = json.dumps(told.config(), indent=2)
    reasons = [
        f"{name}: {', '.join(f'{count} {why}' for why, count in result.figures.reasons)}"
        for name, result in told.results.items()
        if result.figures.reasons
    ]
    return "\n".join(
        [
            head(f"Simulated: {told.trace}"),
            "<h1>Routing rules in simulated time</h1>",
            f"<pre>{escape(told.heading)}</pre>",
            f"<pre>{escape(chr(10).join(table(told)[2:]))}</pre>",
            f"<pre>{escape(chr(10).join(reasons))}</pre>" if reasons else "",
            '<div class="plots">',
            _cdfs(shown),
            _over_time(shown),
            _bars(told.results),
            _loads(told, shown),
            f"</div><h2>What was run</h2><pre>{escape(config)}</pre></body></html>",
        ]
    )


def _shown(results: Mapping[str, Result]) -> list[tuple[str, Result]]:
    ranked = ordered(results)
    ours = [item for item in ranked if item[0] not in PUBLISHED]
    others = [item for item in ranked if item[0] in PUBLISHED]
    return [*ours, *others][:PLOTTED_MAX]


def _cdfs(shown: Sequence[tuple[str, Result]]) -> str:
    """Misses are right of everything: a curve that does not reach 1 has them."""
    series = []
    for name, result in shown:
        served = result.first.served
        good = [one.ttft_ms for one in served if isfinite(one.ttft_ms)]
        share = len(good) / len(served) if served else 0.0
        one = cdf(name, good)
        series.append(Series(name, [(x, y * share) for x, y in one.points]))
    values = [x for one in series for x, _ in one.points]
    x = spanning("TTFT ms", values, log=True)
    return plot("TTFT: share up to, refused ones never", x, Axis("share", 0.0, 1.0), series)


def _over_time(shown: Sequence[tuple[str, Result]]) -> str:
    """The 95th percentile of each thirtieth of the run."""
    series = []
    for name, result in shown:
        span_s = max(result.first.span_s, 1e-9)
        slots: list[list[float]] = [[] for _ in range(30)]
        for one in result.first.served:
            slots[min(29, int(30 * one.at_s / span_s))].append(one.ttft_ms)
        tops = [
            ((slot + 0.5) * span_s / 30, sorted(values)[int(0.95 * (len(values) - 1))])
            for slot, values in enumerate(slots)
            if values
        ]
        series.append(Series(name, [point for point in tops if isfinite(point[1])]))
    points = [point for one in series for point in one.points]
    x = spanning("s", [at for at, _ in points])
    y = spanning("TTFT p95 ms", [value for _, value in points])
    return plot("TTFT p95 over time", x, y, series)


def _bars(results: Mapping[str, Result]) -> str:
    """Each rule as a dot: what of the prompts was cached, and what it came to."""
    series = [
        Series("firstlight" if ours else "others", points, "dots")
        for ours in (True, False)
        if (
            points := [
                (one.figures.hit_rate, one.figures.ttft_p95_ms)
                for name, one in results.items()
                if (name not in PUBLISHED) == ours and isfinite(one.figures.ttft_p95_ms)
            ]
        )
    ]
    points = [point for one in series for point in one.points]
    x = spanning("share of prompt tokens cached", [at for at, _ in points])
    y = spanning("TTFT p95 ms", [value for _, value in points])
    return plot("Hits and TTFT p95, a dot a rule", x, y, series)


def _loads(told: Told, shown: Sequence[tuple[str, Result]]) -> str:
    series = [
        Series(name, [(float(region), share) for region, share in enumerate(one.figures.busy)])
        for name, one in shown
    ]
    regions = ", ".join(f"{n} {name}" for n, name in enumerate(told.course.setup.matrix.regions))
    x = Axis(f"region: {regions}", 0.0, max(1.0, len(told.course.setup.matrix.regions) - 1.0))
    return plot("Share of time in which cores were busy", x, Axis("share", 0.0, 1.0), series)


def _cells(told: Figures) -> list[str]:
    return [
        *(_ms(ms) for ms in (told.ttft_p50_ms, told.ttft_p95_ms, told.ttft_p99_ms)),
        f"{told.refused}",
        f"{told.hit_rate:.3f}",
        f"{told.away:.2f}",
        " ".join(f"{share:.2f}" for share in told.busy),
        f"{told.uneven:.2f}",
        f"{told.e2e_p50_ms / 1000:.1f}" if isfinite(told.e2e_p50_ms) else "never",
    ]


def _ways(result: Result) -> str:
    return "; ".join(dict.fromkeys(way.told for _, way, _ in result.each))


def _ms(value: float) -> str:
    return f"{value:.0f}" if isfinite(value) else "never"
