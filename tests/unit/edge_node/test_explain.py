"""From notes to a story: one axis, phases without gaps, and honest words where a core is silent."""

from typing import Any

import pytest

from firstlight.edge_node.answer import ChoiceStats
from firstlight.edge_node.explain import PLACED, explain
from firstlight.edge_node.timeline import Timeline
from firstlight.shared.errors import CapacityError
from firstlight.shared.types import Candidate, HintCount, Mark, Route

ROUTE = Route(
    (Candidate("core-eu", "eu", 120.5, "cold"), Candidate("core-us", "us", 300.0, "hot")), "home"
)
MARKS = (
    Mark("queued", 0.0, "39 tokens"),
    Mark("admitted", 80.0, "0 of 39 tokens cached"),
    Mark("first step", 80.0),
    Mark("first id", 380.0),
    Mark("finished", 880.0, "stop"),
)


def begun(choices: int = 1) -> Timeline:
    """A request whose first byte came at 100 s on the edge's clock, routed 10 ms later."""
    timeline = Timeline("chatcmpl-1", "acme", 100.0)
    timeline.name([f"s{number}" for number in range(choices)])
    timeline.note("tokenized", 100.008, prompt_tokens=39)
    for choice in range(choices):
        opened(timeline, 100.010, "core-eu", 1, choice)
    return timeline


def opened(timeline: Timeline, now: float, core: str, epoch: int, choice: int = 0) -> None:
    timeline.note("routed", now, choice, core=core, route=ROUTE)
    timeline.note("opened", now, choice, core=core, epoch=epoch, rtt_ms=20.0)


def finished(timeline: Timeline, marks: tuple[Mark, ...] = MARKS) -> Timeline:
    timeline.note("first commit", 100.402, 0, epoch=1)
    timeline.note("first text", 100.403, 0)
    timeline.note("last id", 100.910, 0)
    timeline.note("marks", 100.912, 0, epoch=1, marks=marks)
    stats = ChoiceStats(completion_tokens=12, hints={"edge": HintCount(3, 2, 1)})
    timeline.note("ended", 100.913, 0, finish="stop", stats=stats)
    timeline.note("sent", 100.914)
    return timeline


def told(timeline: Timeline, now: float = 101.0) -> dict[str, Any]:
    return explain(timeline, edge="edge", now=now)


def entries(story: dict[str, Any], node: str) -> dict[str, float]:
    return {e["what"]: e["ms"] for e in story["entries"] if e["node"] == node}


def phases(story: dict[str, Any], choice: int = 0) -> list[tuple[str, str, float]]:
    return [
        (phase["phase"], phase["node"], round(phase["ms"]))
        for phase in story["phases"]
        if phase["choice"] == choice
    ]


def test_a_cores_zero_is_put_at_open_and_half_a_round_trip_and_says_so() -> None:
    story = told(finished(begun()))
    assert entries(story, "core-eu") == {
        "queued": 20.0, "admitted": 100.0, "first step": 100.0,
        "first id": 400.0, "finished": 900.0,
    }  # fmt: skip
    queued = next(entry for entry in story["entries"] if entry["what"] == "queued")
    assert (queued["placed"], queued["core_ms"], queued["detail"]) == (PLACED, 0.0, "39 tokens")


def test_a_mark_is_never_put_beyond_what_the_edge_saw() -> None:
    late = (Mark("queued", 0.0), Mark("first id", 395.0), Mark("finished", 999.0))
    placed = entries(told(finished(begun(), late)), "core-eu")
    assert placed == {"queued": 20.0, "first id": 402.0, "finished": 910.0}


def test_phases_follow_each_other_from_the_first_byte_to_the_end() -> None:
    story = told(finished(begun()))
    assert phases(story) == [
        ("read and tokenize", "edge", 8),
        ("route", "edge", 2),
        ("network", "edge → core-eu", 10),
        ("queue", "core-eu", 80),
        ("prefill", "core-eu", 300),
        ("network", "core-eu → edge", 2),
        ("send", "edge", 1),
        ("decode", "core-eu", 497),
        ("network", "core-eu → edge", 10),
        ("ending", "edge", 3),
    ]
    assert sum(phase["ms"] for phase in story["phases"]) == pytest.approx(913.0)


def test_the_whole_says_how_it_ended_and_when_its_first_text_was_out() -> None:
    story = told(finished(begun()))
    assert (story["status"], story["first_token_ms"], story["total_ms"]) == ("finished", 403, 914)
    ended = next(entry for entry in story["entries"] if entry["what"] == "ended")
    assert (ended["tokens"], ended["hints"]["edge"]["accepted"]) == (12, 1)


def test_a_route_is_told_with_those_who_stood_behind() -> None:
    routed = next(e for e in told(begun())["entries"] if e["what"] == "routed")
    assert routed["reason"] == "home"
    parts = dict.fromkeys(("rtt_ms", "queue_ms", "prefill_ms", "step_ms", "penalty_ms"), 0.0)
    assert routed["candidates"][1] == {
        "core": "core-us",
        "region": "us",
        "expected_ttft_ms": 300.0,
        "reason": "hot",
        "expected": {**parts, "way": "recompute"},
    }


def test_a_lost_cores_time_is_of_unknown_use_and_the_move_is_a_phase() -> None:
    timeline = begun()
    timeline.note("left", 100.200, 0, core="core-eu", how="lost")
    opened(timeline, 100.250, "core-us", 2)
    timeline.note("first commit", 100.500, 0, epoch=2)
    timeline.note("ended", 100.600, 0)
    story = told(timeline)
    assert entries(story, "core-eu") == {"no marks": 20.0}
    assert phases(story)[2:6] == [
        ("network", "edge → core-eu", 10),
        ("unknown", "core-eu", 180),
        ("move", "edge", 50),
        ("network", "edge → core-us", 10),
    ]


@pytest.mark.parametrize(
    ("what", "facts", "words"),
    [
        ("left", {"how": "lost"}, "lost with the core"),
        ("left", {"how": "refused"}, "the core sent none"),
        ("cancelled", {}, "nobody waited for them"),
        ("last id", {}, "they did not come in time"),
    ],
)
def test_why_there_are_no_marks_is_said(what: str, facts: dict[str, object], words: str) -> None:
    timeline = begun()
    assert [e["detail"] for e in told(timeline)["entries"] if e["what"] == "no marks"] == [
        "they come at its end"
    ]
    timeline.note(what, 100.5, 0, **facts)
    assert [e["detail"] for e in told(timeline)["entries"] if e["what"] == "no marks"] == [words]


def test_what_a_lost_core_said_with_its_first_commit_is_not_lost() -> None:
    timeline = begun()
    timeline.note("first commit", 100.402, 0, epoch=1, queue_ms=80.0, prefill_ms=300.0)
    timeline.note("left", 100.600, 0, core="core-eu", how="lost")
    timeline.note("gave up", 100.601, 0, kind="peer")
    story = told(timeline)
    assert entries(story, "core-eu") == {
        "queued": 20.0, "first step": 100.0, "first id": 400.0, "no more marks": 400.0,
    }  # fmt: skip
    assert phases(story)[3:] == [
        ("queue", "core-eu", 80),
        ("prefill", "core-eu", 300),
        ("network", "core-eu → edge", 2),
        ("decode", "core-eu", 198),
        ("move", "edge", 1),
    ]


def test_a_core_of_an_older_kind_sends_none() -> None:
    story = told(finished(begun(), marks=()))
    assert [e["detail"] for e in story["entries"] if e["what"] == "no marks"] == [
        "the core sent none"
    ]


def test_preemptions_and_stalls_are_phases_of_their_own() -> None:
    marks = (*MARKS[:4], Mark("preempted", 400.0), Mark("admitted", 500.0), Mark("stalled", 600.0),
             Mark("resumed", 700.0), MARKS[4])  # fmt: skip
    names = [name for name, _, _ in phases(told(finished(begun(), marks)))]
    assert names[7:12] == ["decode", "preempted", "client not reading", "decode", "network"]


def test_marks_that_we_have_no_phase_for_lie_within_the_phase_before() -> None:
    marks = (MARKS[0], Mark("fetch decided", 10.0), *MARKS[1:])
    assert phases(told(finished(begun(), marks))) == phases(told(finished(begun())))


def test_choices_have_phases_of_their_own() -> None:
    timeline = finished(begun(choices=2))
    timeline.note("gave up", 100.700, 1, kind="peer")
    story = told(timeline)
    assert phases(story, 0)[-1] == ("ending", "edge", 3)
    assert phases(story, 1)[-1] == ("unknown", "core-eu", 680)


def test_a_refused_request_is_told_with_its_error() -> None:
    timeline = Timeline("chatcmpl-1", "acme", 100.0)
    timeline.note("tokenized", 100.008, prompt_tokens=39)
    timeline.fail(CapacityError("all 2 cores are full"), 100.010)
    story = told(timeline)
    assert (story["status"], story["total_ms"], story["first_token_ms"]) == ("failed", 10.0, None)
    assert story["entries"][-1]["message"] == "all 2 cores are full"
    assert phases(story) == [("read and tokenize", "edge", 8), ("route", "edge", 2)]


def test_a_request_that_runs_lasts_until_now() -> None:
    story = told(begun(), now=100.050)
    assert (story["status"], story["total_ms"]) == ("running", 50.0)
    assert phases(story)[-1] == ("unknown", "core-eu", 30)


def test_an_answer_in_one_body_has_its_first_token_when_its_first_id_was_here() -> None:
    timeline = begun()
    timeline.note("first commit", 100.4, 0, epoch=1)
    timeline.note("ended", 100.6, 0)
    timeline.note("sent", 100.7)
    story = told(timeline)
    assert story["first_token_ms"] == 400.0
    assert phases(story)[-1] == ("decode", "core-eu", 200)
