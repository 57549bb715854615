"""What a measurement says: one object, a table, a page."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from load_records import answered, missed, run

from firstlight.infra.bench.load.compare import ratios
from firstlight.infra.bench.load.figures import Sla
from firstlight.infra.bench.load.plots import DOTS_MAX, STEPS_MAX, Axis, Series, cdf, plot, spanning
from firstlight.infra.bench.load.records import Record
from firstlight.infra.bench.load.report import Asked, Report, Schedule, Side, block
from firstlight.infra.bench.load.report_html import page
from firstlight.infra.bench.load.report_table import table

EVIL = "<script>alert('x')</script>"


def a_report(*sides: Side, cut_short: str | None = None) -> Report:
    schedule = Schedule("poisson", None, None, 8, 2.0, 800, 40, "both", 1)
    compared = []
    if len(sides) > 1:
        compared = ratios([(block(sides[0].runs[0]), block(sides[1].runs[0]))], Sla(), 1)
    return Report(
        "firstlight bench load\na machine", 1.0, cut_short, schedule, Sla(), sides, compared
    )


def a_side(name: str = "A", model: str = "tiny", records: list[Record] | None = None) -> Side:
    mixed = [answered(n, planned_s=n / 4, connect_s=0.01 if n % 2 else None) for n in range(8)]
    told = [*mixed, missed("refused_503", 8, f"no room {EVIL}")] if records is None else records
    return Side(name, Asked("https://localhost:1/v1", "2", "completions", model), [run(told)])


def test_the_object_has_one_schema_and_a_row_a_request() -> None:
    told = json.loads(json.dumps(a_report(a_side()).as_object(), allow_nan=False))
    assert told["schema"] == "firstlight.load/1"
    (side,) = told["sides"]
    assert side["figures"]["ttft_cold_ms"]["count"] == 4
    assert side["figures"]["misses"] == {"refused_503": 1}
    assert len(side["requests"]) == 9
    assert side["requests"][5] == {
        **{"block": 0, "index": 5, "at_ms": 1250.0, "slip_ms": 0.0, "cold": True},
        **{"tokens_in": 100, "tokens_cached": None, "tokens_out": 5},
        **{"ttft_ms": 100.0, "tpot_ms": 20.0, "e2e_ms": 190.0, "miss": None},
    }
    assert side["requests"][8]["miss"] == "refused_503"


def test_several_blocks_are_told_together_and_each() -> None:
    side = a_side()
    side.runs.append(run([answered(0, planned_s=50.0)], begun_s=50.0))
    (told,) = a_report(side).as_object()["sides"]
    assert told["figures"]["counts"]["due"] == 10
    assert [one["counts"]["due"] for one in told["blocks"]] == [9, 1]
    assert told["figures"]["duration_s"] == pytest.approx(1.94 + 0.19)
    assert told["requests"][-1]["at_ms"] == 0.0


def test_the_table_says_each_miss_with_its_first_words() -> None:
    lines = table(a_report(a_side()))
    assert any(re.match(r"missed: refused_503 +1 \(no room", line) for line in lines)
    assert not any(line.startswith("!!") for line in lines)


def test_a_run_that_slipped_says_so_in_table_object_and_page() -> None:
    report = a_report(a_side(records=[answered(n, slip_s=0.2) for n in range(4)]))
    assert any(line.startswith("!! THE SCHEDULE SLIPPED: p99 200.0 ms") for line in table(report))
    assert report.as_object()["sides"][0]["figures"]["client"]["slipped"] is True
    assert '<p class="warn">THE SCHEDULE SLIPPED' in page(report)


def test_a_run_that_was_cut_short_says_so_everywhere() -> None:
    side = a_side()
    side.runs[0] = replace(side.runs[0], cut_short="SIGINT", planned=30)
    report = a_report(side, cut_short="SIGINT")
    lines = table(report)
    assert lines[0] == "!! CUT SHORT: SIGINT"
    assert any("9 of 30 requests were due" in line for line in lines)
    assert report.as_object()["cut_short"] == "SIGINT"
    assert "CUT SHORT" in page(report)


def test_a_comparison_names_both_sides_and_where_no_difference_is_shown() -> None:
    lines = table(a_report(a_side("A"), a_side("B")))
    assert any(line.startswith("B: https://localhost:1/v1") for line in lines)
    row = next(line for line in lines if line.startswith("ttft_p50_ms"))
    assert "1.000" in row
    assert row.endswith("no difference shown")


class Tags(HTMLParser):
    """Tags, and what they refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.referred: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.referred += [v or "" for n, v in attrs if n in ("src", "href", "data", "action")]


def test_the_page_runs_nothing_and_loads_nothing_whatever_servers_say() -> None:
    text = page(a_report(a_side(model=EVIL), a_side("B")))
    tags = Tags()
    tags.feed(text)
    assert "script" not in tags.names
    assert tags.referred == []
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text
    assert tags.names.count("svg") == 4


def test_every_plot_is_well_formed_and_has_its_points() -> None:
    text = page(a_report(a_side()))
    plots = [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text, re.S)]
    assert len(plots[0].findall("circle")) == 8
    assert [len(one.findall("polyline")) for one in plots] == [0, 2, 1, 3]


def test_a_page_without_any_answer_opens_too() -> None:
    text = page(a_report(a_side(records=[missed("timeout")])))
    assert text.count("nothing to show") == 3


def test_a_value_is_placed_between_the_ends_of_its_axis() -> None:
    assert Axis("", 0.0, 10.0).place(2.5) == 0.25
    assert Axis("", 1.0, 100.0, log=True).place(10.0) == 0.5
    assert [Axis("", 0.0, 1.0).place(v) for v in (-1.0, 2.0)] == [0.0, 1.0]


def test_ticks_are_round_and_within() -> None:
    assert Axis("", 0.0, 10.0).ticks == [0, 2, 4, 6, 8, 10]
    assert Axis("", 3.0, 30.0, log=True).ticks == pytest.approx([5, 10, 20])


def test_a_logarithmic_axis_ends_at_round_values_so_that_it_has_ticks() -> None:
    axis = spanning("ms", [203.0, 287.0], log=True)
    assert (axis.low, axis.high) == (200.0, 500.0)
    assert axis.ticks == pytest.approx([200, 500])
    assert spanning("ms", [], log=True).ticks


def test_a_cdf_goes_up_to_one() -> None:
    assert cdf("x", [3.0, 1.0, 2.0, 4.0]).points == [
        (1.0, 0.25),
        (2.0, 0.5),
        (3.0, 0.75),
        (4.0, 1.0),
    ]
    many = cdf("x", [float(n) for n in range(100_000)]).points
    assert len(many) <= STEPS_MAX + 1
    assert many[-1] == (99_999.0, 1.0)


def test_many_dots_are_thinned() -> None:
    points = [(float(n), 1.0) for n in range(10 * DOTS_MAX)]
    x = spanning("x", [at for at, _ in points])
    text = plot("t", x, Axis("y", 0.0, 2.0), [Series("s", points, "dots")])
    assert text.count("<circle") == DOTS_MAX
