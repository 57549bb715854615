"""Rules against each other, what is told of them, and the command."""

import json
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from random import Random

import pytest
from sim_bed import arrivals, mesh

from firstlight.infra.cli import run
from firstlight.infra.sim.contest import Course, contest, workers
from firstlight.infra.sim.figures import figures, rank
from firstlight.infra.sim.nearby import Nearby
from firstlight.infra.sim.policies.policy import Ask, Seen
from firstlight.infra.sim.policies.round_robin import RoundRobin
from firstlight.infra.sim.report import Told, ordered, page, table
from firstlight.infra.sim.rules import NAMES, Way, chosen, knobs, ways
from firstlight.infra.sim.simulation import Run, Served
from firstlight.shared.errors import ConfigError

COURSE = Course(arrivals(40), mesh(), 0.5)


def seen(server: int, region: int, rtt_ms: float, *, running: int = 0) -> Seen:
    return Seen(server, region, rtt_ms, 0, running, 16, 0, 0.0, 0, 0.02, (), 0.1, 0)


def served(ttft_ms: float, number: int = 0) -> Served:
    refused = "" if isfinite(ttft_ms) else "full"
    return Served(number, 0, 0.0, ttft_ms, ttft_ms, 0, 100, 40, refused, 1)


def test_a_refused_request_took_for_ever() -> None:
    run_ = Run(tuple(served(ms) for ms in (1.0, 2.0, 3.0, inf)), 1.0, (0.5,), (3.0, 1.0), 9)
    told = figures([run_])
    assert (told.ttft_p50_ms, told.ttft_p95_ms, told.refused) == (2.0, inf, 1)
    assert told.hit_rate == 0.4
    assert told.uneven == 1.5
    assert told.reasons == (("full", 1),)
    assert told.as_object()["ttft_p95_ms"] is None


@pytest.mark.parametrize(("share", "value"), [(0.5, 2.0), (0.95, 4.0), (0.25, 1.0), (1.0, 4.0)])
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert rank([3.0, 1.0, 4.0, 2.0], share) == value


def test_nearby_stays_in_the_region_that_has_room() -> None:
    rule = Nearby(RoundRobin())
    ask = Ask(0, 100, 10, (), 0.0, 1, 0)
    there = [seen(0, 0, 90.0), seen(1, 1, 2.0), seen(2, 1, 2.0)]
    assert {rule.pick(ask, there, Random(1)).server for _ in range(6)} == {1, 2}


def test_nearby_overflows_to_the_next_region_at_the_cap() -> None:
    rule = Nearby(RoundRobin())
    ask = Ask(0, 100, 10, (), 0.0, 1, 0)
    there = [seen(0, 0, 90.0), seen(1, 1, 2.0, running=16), seen(2, 2, 200.0)]
    assert rule.pick(ask, there, Random(1)).server == 0


def test_a_rule_without_a_network_term_is_run_both_ways() -> None:
    assert list(ways("round_robin")) == [False, True]
    assert list(ways("gorgo")) == list(ways("firstlight")) == [False]


def test_each_rule_is_told_at_its_best() -> None:
    results = contest(COURSE, ("firstlight", "p2c"), (3,), tune_requests=15)
    part = COURSE.part(15)
    for near in ways("p2c"):
        tuned = {
            knob: figures([part.run(Way("p2c", near, knob), 3 + 1_000_003)]).ttft_p95_ms
            for knob in knobs("p2c")
        }
        full = [
            figures([COURSE.run(Way("p2c", near, knob), 3)]).ttft_p95_ms
            for knob, ms in tuned.items()
            if ms == min(tuned.values())
        ]
        assert results["p2c"].figures.ttft_p95_ms <= max(full)
    assert results["firstlight"].figures == figures([COURSE.run(Way("firstlight"), 3)])


def test_processes_change_nothing() -> None:
    alone = contest(COURSE, ("dynamo",), (1, 2), tune_requests=10)
    with workers(2) as spread:
        assert contest(COURSE, ("dynamo",), (1, 2), tune_requests=10, spread=spread) == alone


def test_a_course_at_a_speed_keeps_to_it() -> None:
    asked, speed = replace(COURSE, speed=2.0).asked(0)
    assert speed == 2.0
    assert asked[-1].at_s == pytest.approx(COURSE.arrivals[-1].at_s / 2)


def test_the_page_needs_no_network_and_names_every_rule() -> None:
    results = contest(COURSE, ("firstlight", "round_robin"), (1,), tune_requests=5)
    told = Told("a\nb", COURSE, "<trace>", (1,), 5, results)
    html = page(told)
    assert "http" not in html.replace("http-equiv", "")
    assert "<script" not in html
    assert "&lt;trace&gt;" in html
    assert all(name in html for name in results)
    rows = table(told)
    assert [row.split()[0] for row in rows[-2:]] == [name for name, _ in ordered(results)]


def test_a_rule_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="'magic'"):
        chosen("firstlight,magic")
    assert chosen("all") == NAMES
    assert chosen("p2c, p2c") == ("p2c",)


def write_trace(path: Path) -> Path:
    rows = [
        {
            "timestamp": int(one.at_s * 1000),
            "input_length": one.tokens_in,
            "output_length": one.tokens_out,
            "hash_ids": list(one.blocks),
        }
        for one in arrivals(30)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_the_commands_last_line_is_one_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, html = write_trace(tmp_path / "t.jsonl"), tmp_path / "t.html"
    words = ["simulate", "--trace", str(trace), "--policies", "firstlight,p2c", "--load", "0.5"]
    assert run([*words, "--tune-requests", "5", "--html", str(html), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(told["policies"]) == {"firstlight", "p2c"}
    ours = told["policies"]["firstlight"]
    assert ours["requests"] == 30
    assert {"ttft_p50_ms", "ttft_p95_ms", "refused", "hit_rate"} <= set(ours)
    assert told["config"]["load"] == 0.5
    assert html.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    "words",
    [
        ["--policies", "magic"],
        ["--fault", "kill:core-99@1"],
        ["--matrix", "moon"],
        ["--pool-tokens", "4096"],
        ["--html", "/nowhere/at/all.html"],
    ],
)
def test_what_cannot_be_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    trace = write_trace(tmp_path / "t.jsonl")
    assert run(["simulate", "--trace", str(trace), "--policies", "p2c", *words]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_trace_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", "--trace", str(tmp_path / "none.jsonl")]) == 1
    assert "cannot be read" in capsys.readouterr().err
