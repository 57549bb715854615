"""What people and programs read of a run."""

from typing import Any

from firstlight.infra.judge.verdict import Verdict
from firstlight.infra.scenario.conducted import Conducted
from firstlight.infra.scenario.figures import Outcome, Row
from firstlight.infra.scenario.limits import judged
from firstlight.infra.scenario.report import SCHEMA, Report
from firstlight.infra.scenario.scenario import Scenario

TOPOLOGY: dict[str, Any] = {
    "regions": {"eu": {}},
    "nodes": {"edge": {"role": "edge", "region": "eu"}, "user": {"role": "client", "region": "eu"}},
}
LOAD: dict[str, Any] = {"name": "some row", "at": "user", "edges": ["edge"]}


def report(
    row: Row, *, problems: tuple[str, ...] = (), missing: tuple[str, ...] = (), **load: Any
) -> Report:
    whole = {
        "title": "A try",
        "topology": TOPOLOGY,
        "columns": ["answered", "ttft_p50_ms", "hints_accepted"],
        "phases": [{"name": "first", "load": [LOAD | load]}],
    }
    scenario = Scenario.model_validate(whole)
    rows = {"some row": row}
    found = Conducted(rows, [judged(scenario.phases[0].load[0], rows)], problems=[*problems])
    verdict = Verdict((), missing, ("I1",), streams=1, processes=1)
    return Report("command\nmachine", scenario, 7, 12.3, found, verdict)


def answered() -> Row:
    outcome = Outcome(0, 1.0)
    outcome.seen((1,), 1.25)
    return Row([outcome])


def test_a_table_has_a_line_a_row_and_no_column_that_nothing_was_measured_of() -> None:
    head, line = report(answered()).table()
    assert head.split() == ["row", "answered", "ttft_p50_ms", "kept"]
    assert line.split() == ["some", "row", "1", "250", "yes"]
    assert len(head) == len(line)


def test_a_run_holds_only_if_rows_judge_and_run_do() -> None:
    assert report(answered()).held
    assert not report(answered(), keep={"ttft_p50_ms": {"at_most": 200}}).held
    assert not report(answered(), problems=("core has ended by itself",)).held
    assert not report(answered(), missing=("no history of core",)).held


def test_what_was_missed_is_said_below_the_table() -> None:
    told = report(answered(), keep={"ttft_p50_ms": {"at_most": 200}})
    assert "missed: some row: ttft_p50_ms: 250, expected at most 200" in list(told.lines())
    assert [*told.lines()][-1] == "seed 7, 12 s: NOT held"
    assert [*told.table()][1].split()[-1] == "NO"


def test_programs_get_every_figure_and_what_requests_failed_of() -> None:
    row = Row([*answered().outcomes, Outcome(1, 1.0, error="lost"), Outcome(2, 1.0, error="lost")])
    told = report(row).object()
    assert (told["schema"], told["seed"], told["held"]) == (SCHEMA, 7, False)
    assert told["rows"][0]["errors"] == {"lost": 2}
    assert told["rows"][0]["success"] == 0.3333
    assert told["judge"]["verdict"] == "held"


def test_a_row_that_is_not_shown_is_held_to_its_limits_all_the_same() -> None:
    told = report(answered(), shown=False, keep={"ttft_p50_ms": {"at_most": 200}})
    assert len([*told.table()]) == 1
    assert not told.held
