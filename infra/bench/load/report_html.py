"""One page with everything: it opens without a network, and runs nothing."""

import json
from collections import Counter
from collections.abc import Sequence
from html import escape

from firstlight.infra.bench.load.figures import gaps_ms
from firstlight.infra.bench.load.plots import Axis, Series, cdf, plot, spanning
from firstlight.infra.bench.load.report import Report, Side
from firstlight.infra.bench.load.report_table import table, warnings

_COLORS = ("#2a6fdb", "#d9480f", "#2b8a3e", "#862e9c", "#e8a500", "#495057")
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1400px;padding:0 1rem;"
    "background:#fff;color:#1c2126}pre{overflow:auto;background:#f3f5f7;padding:1rem}"
    ".warn{background:#c92a2a;color:#fff;padding:.7rem 1rem;font-weight:700}"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:1rem}"
    "figure{margin:0}figcaption{font-weight:600}svg{width:100%;background:#fff}"
    "text{font-size:11px;fill:#495057}.mid{text-anchor:middle}.end{text-anchor:end}"
    ".g{stroke:#dfe3e8;stroke-width:1}polyline{fill:none;stroke-width:1.8}"
    ".legend span{margin-right:1rem;font-size:13px;border-left:12px solid;padding-left:5px}"
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
Points = dict[str, list[tuple[float, float]]]


def page(report: Report) -> str:
    """The whole file."""
    told = [w for side in report.sides for w in _warnings(report, side)]
    summary = {k: v for k, v in report.as_object().items() if k != "sides"}
    return "\n".join(
        [
            head(f"Load: {report.sides[0].target.url}"),
            "<h1>Under load</h1>",
            *(f'<p class="warn">{escape(warning)}</p>' for warning in told),
            f"<pre>{escape(report.heading)}</pre>",
            f"<pre>{escape(chr(10).join(table(report)))}</pre>",
            '<div class="plots">',
            _over_time(report.sides),
            _cdfs("TTFT", "TTFT ms", _first_texts(report.sides)),
            _cdfs("ITL: gaps between pieces of text", "ITL ms", _gaps(report.sides)),
            _rates(report.sides),
            "</div><h2>The load</h2>",
            f"<pre>{escape(json.dumps(summary, indent=2))}</pre></body></html>",
        ]
    )


def head(title: str) -> str:
    """All before a page's first word."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(title)}</title>"
        f"<style>{_STYLE}{_color_style()}</style></head><body>"
    )


def _warnings(report: Report, side: Side) -> list[str]:
    name = f"{side.name}: " if len(report.sides) > 1 else ""
    return [name + warning for warning in warnings(side.figures(report.sla))]


def _color_style() -> str:
    return "".join(
        f".d{n}{{fill:{color};fill-opacity:.55}}.l{n}{{stroke:{color}}}"
        f".k{n}{{border-color:{color}!important}}"
        for n, color in enumerate(_COLORS)
    )


def _over_time(sides: Sequence[Side]) -> str:
    """A dot an answer, by when it was sent; blocks of one side lie over each other."""
    points: Points = {}
    for side in sides:
        for run in side.runs:
            for record in run.records:
                if record.answered and record.sent_s is not None:
                    name = _named(sides, side, "cold" if record.cold else "warm")
                    at_s = record.sent_s - run.begun_s
                    points.setdefault(name, []).append((at_s, record.timing.ttft_ms))
    all_ = [point for some in points.values() for point in some]
    x = spanning("sent, s", [at for at, _ in all_])
    y = spanning("TTFT ms", [value for _, value in all_])
    return plot("TTFT over time", x, y, [Series(n, sorted(p), "dots") for n, p in points.items()])


def _cdfs(title: str, label: str, values: dict[str, list[float]]) -> str:
    x = spanning(label, [value for some in values.values() for value in some], log=True)
    series = [cdf(name, some) for name, some in values.items()]
    return plot(f"{title}: share up to", x, Axis("share", 0.0, 1.0), series)


def _first_texts(sides: Sequence[Side]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for side in sides:
        for record in side.records:
            if record.answered:
                name = _named(sides, side, "cold" if record.cold else "warm")
                found.setdefault(name, []).append(record.timing.ttft_ms)
    return found


def _gaps(sides: Sequence[Side]) -> dict[str, list[float]]:
    return {
        _named(sides, side, "all"): gaps_ms(r for r in side.records if r.answered).tolist()
        for side in sides
    }


def _rates(sides: Sequence[Side]) -> str:
    """What happened in each second, all blocks of a side together."""
    series: list[Series] = []
    for side in sides:
        counts = {name: Counter[int]() for name in ("sent", "answered", "missed")}
        for run in side.runs:
            for record in run.records:
                if record.sent_s is not None:
                    counts["sent"][int(record.sent_s - run.begun_s)] += 1
                if record.ended_s is not None:
                    which = "answered" if record.answered else "missed"
                    counts[which][int(record.ended_s - run.begun_s)] += 1
        seconds = range(max((second for c in counts.values() for second in c), default=-1) + 1)
        for name, count in counts.items():
            each = [(float(s), count[s] / len(side.runs)) for s in seconds]
            series.append(Series(_named(sides, side, name), each))
    points = [point for one in series for point in one.points]
    x = spanning("s", [at for at, _ in points])
    return plot("Requests a second", x, spanning("per s", [v for _, v in points]), series)


def _named(sides: Sequence[Side], side: Side, name: str) -> str:
    return f"{side.name} {name}" if len(sides) > 1 else name
