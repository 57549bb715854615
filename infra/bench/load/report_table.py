"""What a measurement says to people: a table, and before it whatever spoils it."""

from collections.abc import Sequence

from firstlight.infra.bench.engine.report import aligned
from firstlight.infra.bench.load.compare import CONFIDENCE, Ratio
from firstlight.infra.bench.load.figures import CPU_SHARE_MAX, SLIP_P99_MS_MAX, Figures, Spread
from firstlight.infra.bench.load.report import Report

_SPREADS = (
    ("TTFT ms", "ttft_ms"),
    ("  warm", "ttft_warm_ms"),
    ("  cold, connecting included", "ttft_cold_ms"),
    ("connecting ms", "connect_ms"),
    ("TPOT ms", "tpot_ms"),
    ("ITL ms", "itl_ms"),
    ("E2E ms", "e2e_ms"),
)
_HEADS = ["", "count", "mean", "p50", "p90", "p95", "p99", "max"]


def table(report: Report) -> list[str]:
    """All lines: each side, then how they compare."""
    lines = [f"!! CUT SHORT: {report.cut_short}"] if report.cut_short else []
    for side in report.sides:
        if not side.runs:
            continue
        found = side.figures(report.sla)
        asked = side.target
        name = f"{side.name}: " if len(report.sides) > 1 else ""
        lines += [f"{name}{asked.url} over HTTP/{asked.http}, {asked.api}, model {asked.model}"]
        lines += [*(f"!! {warning}" for warning in warnings(found)), *_figures(found), ""]
    if report.ratios:
        lines += _ratios(report.ratios)
    return lines


def warnings(found: Figures) -> list[str]:
    """What must be known before a figure is believed."""
    told = []
    client, counts = found.client, found.counts
    if found.cut_short:
        told.append(
            f"CUT SHORT by {found.cut_short}: {counts.due} of {counts.planned} requests were due, "
            f"{counts.unfinished} of them still out"
        )
    if client.slipped and client.slip_ms is not None:
        told.append(
            f"THE SCHEDULE SLIPPED: p99 {client.slip_ms.p99:.1f} ms late "
            f"(limit {SLIP_P99_MS_MAX:g} ms); this was not the load that was asked for"
        )
    if client.busy:
        told.append(
            f"THE CLIENT WAS BUSY: {client.cpu_share_max or client.cpu_share:.0%} of a core "
            f"(limit {CPU_SHARE_MAX:.0%}); latencies may be its own"
        )
    if found.known_before:
        told.append(
            f"THE SERVER KNEW THE PROMPTS: {found.tokens_cached} of {found.tokens_in} tokens were "
            "cached, more than this run could leave there: another --seed asks with new words"
        )
    if found.prompts_miscounted:
        told.append(
            f"{found.prompts_miscounted} prompts had other lengths by the server's count "
            "(a chat's template adds tokens; another vocabulary needs --tokenizer)"
        )
    return told


def _figures(found: Figures) -> list[str]:
    rows = [_HEADS]
    for title, name in _SPREADS:
        rows.append([title, *_cells(getattr(found, name))])
    rows.append(["slip ms", *_cells(found.client.slip_ms)])
    return [*aligned(rows), "", *aligned(_totals(found))]


def _cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["0", *["–"] * 6]
    values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max)
    return [str(spread.count), *(f"{value:.1f}" for value in values)]


def _totals(found: Figures) -> list[list[str]]:
    counts, good = found.counts, found.goodput
    bounds = [("TTFT", good.sla.ttft_ms), ("TPOT", good.sla.tpot_ms)]
    asked = ", ".join(f"{n} ≤ {ms:g} ms" for n, ms in bounds if ms is not None) or "answered"
    share = "–" if good.share is None else f"{good.share:.1%}"
    rows = [
        ["requests", f"{counts.answered} answered of {counts.due} due, {counts.missed} missed"],
        ["rate", f"{_number(found.requests_per_s)} answers/s in {found.duration_s:.1f} s"],
        [
            "tokens in",
            f"{found.tokens_in}, {_number(found.tokens_in_per_s)}/s, "
            f"{'–' if found.tokens_cached is None else found.tokens_cached} of them cached",
        ],
        ["tokens out", f"{found.tokens_out}, {_number(found.tokens_out_per_s)}/s"],
        ["goodput", f"{_number(good.per_s)}/s, {share} ({asked})"],
        ["outstanding", f"{counts.outstanding_most} at most"],
        [
            "client CPU",
            f"{_percent(found.client.cpu_share)} of a core, "
            f"{_percent(found.client.cpu_share_max)} in its busiest second",
        ],
    ]
    for reason, count in found.misses.items():
        rows.append([f"missed: {reason}", f"{count} ({found.said.get(reason, '')})"])
    return rows


def _ratios(ratios: Sequence[Ratio]) -> list[str]:
    rows = [["A / B", "A", "B", "ratio", f"{CONFIDENCE:.0%} interval", ""]]
    for one in ratios:
        same = one.low <= 1 <= one.high
        rows.append(
            [
                one.name,
                f"{one.a:.3f}",
                f"{one.b:.3f}",
                f"{one.ratio:.3f}",
                f"{one.low:.3f} – {one.high:.3f}",
                "no difference shown" if same else "",
            ]
        )
    return aligned(rows)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
