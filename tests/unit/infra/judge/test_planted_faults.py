"""A history of a healthy run is held; one with a planted fault is named by just that fault."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judge_bed import Altered, moved_stream, other_hash, verdict_of

from firstlight.infra.judge.invariants import INVARIANTS
from firstlight.infra.judge.verdict import HELD, INCOMPLETE, VIOLATED
from firstlight.shared.history import Line, What

ENDS = (What.ENDED, What.DELIVERED)


def test_a_healthy_run_is_held(histories: Path) -> None:
    verdict = verdict_of(histories)
    assert (verdict.violations, verdict.missing) == ((), ())
    assert verdict.exit_code == HELD
    assert verdict.held == tuple(one.name for one in INVARIANTS)
    assert verdict.streams == 9


def test_the_healthy_run_has_what_the_planted_faults_need(run: Altered) -> None:
    said = {line.what for line in run.lines["edge"]}
    wanted = {What.MOVED, What.RESUMED, What.CANCELLED, What.DELIVERED, What.SENT}
    assert wanted <= said
    assert any(line.facts.get("cached_tokens") for line in run.lines["core-eu"])


def doubled(run: Altered) -> str:
    place = run.find("edge", What.SENT, lambda line: line.offset == 7)
    run.lines["edge"].insert(place + 1, run.lines["edge"][place])
    return "doubled: ids 6 to 6 were sent twice"


def lost(run: Altered) -> str:
    place = run.find("edge", What.SENT, lambda line: line.offset == 7)
    del run.lines["edge"][place]
    return "lost: ids 6 to 6 were never sent"


def zombie(run: Altered) -> str:
    stream = moved_stream(run)
    place = run.find("edge", What.COMMITTED, lambda line: line.stream == stream and line.epoch == 2)
    run.change("edge", place, epoch=1, facts={"core": "core-eu"})
    return "a zombie's commit was accepted: core-eu, epoch 1"


def leak(run: Altered) -> str:
    free = run.lines["core-us"][-1].facts["free"]
    assert isinstance(free, int)
    run.change("core-us", -1, facts={"used": 3, "free": free - 3})
    return "a leak: 3 blocks are used at the end"


def endless(run: Altered) -> str:
    stream = moved_stream(run)
    run.remove("edge", lambda line: line.stream == stream and line.what in ENDS)
    return "a request without an end"


def innocent(run: Altered) -> str:
    """A stream that lost one core, in mid-answer, ends as if it had killed two."""
    stream = moved_stream(run)
    place = run.find("edge", What.MOVED, lambda line: line.stream == stream)
    said = run.lines["edge"][place]
    run.remove("edge", lambda line: line.stream == stream and line.number > said.number)
    run.change("edge", place, what=What.LEFT, facts={"why": "poison"})
    error = {"kind": "internal", "status": 500, "retryable": False, "code": "poison"}
    poison = Line(0, said.t, What.POISON, stream, 1)
    ended = Line(0, said.t, What.ENDED, stream, 1, said.offset, "", error)
    run.lines["edge"][place + 1 : place + 1] = [poison, ended]
    return "called poison, but 0 cores died under it before a token"


SIX: dict[str, Callable[[Altered], str]] = {
    "I1 doubled": doubled,
    "I1 lost": lost,
    "I7 zombie": zombie,
    "I6 leak": leak,
    "I4 endless": endless,
    "poison innocent": innocent,
}


@pytest.mark.parametrize("name", SIX)
def test_each_of_the_six_planted_faults_is_named_and_nothing_else(run: Altered, name: str) -> None:
    says = SIX[name](run)
    verdict = run.verdict()
    assert {one.invariant for one in verdict.violations} == {name.split()[0]}
    assert verdict.violations[0].what.startswith(says)
    assert verdict.exit_code == VIOLATED


def committed_twice(run: Altered) -> None:
    place = run.find("edge", What.COMMITTED, lambda line: line.offset == 7)
    run.lines["edge"].insert(place + 1, run.lines["edge"][place])


def core_lost_one(run: Altered) -> None:
    del run.lines["core-eu"][run.find("core-eu", What.COMMITTED, lambda line: line.offset == 4)]


def other_ids_sent(run: Altered) -> None:
    place = run.find("edge", What.SENT, lambda line: line.offset == 7)
    run.change("edge", place, hash=other_hash(run.lines["edge"][place].hash))


def handed_over_short(run: Altered) -> None:
    place = run.find("edge", What.OPENED, lambda line: line.epoch == 2)
    run.change("edge", place, offset=(run.lines["edge"][place].offset or 0) - 1)


def cut_answer(run: Altered) -> None:
    place = run.find("edge", What.ENDED)
    run.change("edge", place, offset=41)


def forked(run: Altered) -> None:
    """Both ends of a link tell of other ids from here on than an earlier stream had."""
    stream = moved_stream(run)
    asked = run.lines["edge"][run.find("edge", What.ACCEPTED)].facts["asked"]
    place = run.find("edge", What.ACCEPTED, lambda line: line.stream == stream)
    run.change("edge", place, facts={"asked": asked})


def mixed_salts(run: Altered) -> None:
    place = run.find("core-us", What.OPENED)
    run.change("core-us", place, facts={"salt": "0123456789abcdef"})


def hit_of_nobody(run: Altered) -> None:
    place = run.find("core-eu", What.COMMITTED, lambda line: line.facts.get("cached_tokens") == 0)
    run.change("core-eu", place, facts={"cached_tokens": 32})


def two_ends(run: Altered) -> None:
    place = run.find("edge", What.ENDED)
    run.lines["edge"].insert(place + 1, run.lines["edge"][place])


def core_kept_it(run: Altered) -> None:
    del run.lines["core-us"][run.find("core-us", What.ENDED)]


def vague(run: Altered) -> None:
    place = run.find("edge", What.CANCELLED)
    run.change("edge", place, what=What.ENDED, facts={"kind": "trouble", "retryable": True})


def bug(run: Altered) -> None:
    error = {"kind": "internal", "status": 500, "retryable": False}
    run.lines["edge"].insert(5, Line(0, run.lines["edge"][5].t, What.REFUSED, facts=error))


def blocks_vanish(run: Altered) -> None:
    run.change("core-eu", run.find("core-eu", What.SAMPLE), facts={"free": 100})


def memory_grows(run: Altered) -> None:
    run.change("core-eu", run.find("core-eu", What.SAMPLE), facts={"rss_bytes": 1 << 20})
    run.change("core-eu", -1, facts={"rss_bytes": 1 << 30})


def epoch_again(run: Altered) -> None:
    place = run.find("edge", What.OPENED, lambda line: line.epoch == 2)
    stream = run.lines["edge"][place].stream
    for at, line in enumerate(list(run.lines["edge"])):
        if line.stream == stream and line.epoch == 2:
            run.change("edge", at, epoch=1)
    for at, line in enumerate(list(run.lines["core-us"])):
        if line.stream == stream:
            run.change("core-us", at, epoch=1)


def retried_four_times(run: Altered) -> None:
    place = run.find("edge", What.OPENED)
    opened = run.lines["edge"][place]
    facts = {"core": "core-eu", "how": "refused", "why": "retry"}
    moved = [Line(0, opened.t, What.MOVED, opened.stream, n, None, "", facts) for n in (1, 2, 3)]
    again = [Line(0, opened.t, What.OPENED, opened.stream, n, 0, opened.hash, opened.facts)
             for n in (2, 3, 4)]  # fmt: skip
    between = [line for pair in zip(moved, again, strict=True) for line in pair]
    run.lines["edge"][place + 1 : place + 1] = between
    for node in ("edge", "core-eu"):
        for at, line in enumerate(run.lines[node]):
            known = line.stream == opened.stream and line not in between and line is not opened
            if known and line.epoch == 1:
                run.change(node, at, epoch=4)


def never_again(run: Altered) -> None:
    t = run.run["faults"][0]["t"]
    run.remove("edge", lambda line: line.t > t and line.what is What.DELIVERED)
    error = {"kind": "capacity", "status": 503, "retryable": True}
    for at, line in enumerate(run.lines["edge"]):
        if line.t > t and line.what is What.ENDED:
            run.lines["edge"][at] = Line(0, line.t, What.ENDED, line.stream, facts=error)


def died_of_nothing(run: Altered) -> None:
    del run.lines["core-us"][-1]


def died_of_a_partition(run: Altered) -> None:
    """A killed core leaves no last line, which a fault that kills nobody does not excuse."""
    del run.lines["core-eu"][-1]
    run.run["faults"][0]["kind"] = "partition"


def died_thawed(run: Altered) -> None:
    del run.lines["core-eu"][-1]
    fault = run.run["faults"][0]
    fault |= {"kind": "freeze", "until": fault["t"] + 1}


OTHERS: dict[str, Callable[[Altered], Any]] = {
    "I1 committed twice": committed_twice,
    "I1 core lost one": core_lost_one,
    "I1 other ids sent": other_ids_sent,
    "I1 handed over short": handed_over_short,
    "I1 cut answer": cut_answer,
    "I2 forked": forked,
    "I3 mixed salts": mixed_salts,
    "I3 hit of nobody": hit_of_nobody,
    "I4 two ends": two_ends,
    "I4 core kept it": core_kept_it,
    "I5 vague": vague,
    "I5 bug": bug,
    "I6 blocks vanish": blocks_vanish,
    "I6 memory grows": memory_grows,
    "I7 epoch again": epoch_again,
    "I8 retried four times": retried_four_times,
    "I9 never again": never_again,
    "I9 died of nothing": died_of_nothing,
    "I9 died of a partition": died_of_a_partition,
    "I9 died thawed": died_thawed,
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_invariant_can_be_violated_alone(run: Altered, name: str) -> None:
    OTHERS[name](run)
    found = {one.invariant for one in run.verdict().violations}
    assert found == {name.split()[0]}


def test_every_invariant_has_a_planted_fault() -> None:
    planted = {name.split()[0] for name in (*SIX, *OTHERS)}
    assert planted == {one.name for one in INVARIANTS}


@pytest.mark.parametrize(
    ("kind", "found"),
    [("kill", set()), ("hang", {"poison"}), ("freeze", {"poison"}), ("clock", {"poison"})],
)
def test_a_poison_is_no_violation_if_two_cores_died_of_faults(
    run: Altered, kind: str, found: set[str]
) -> None:
    innocent(run)
    stream = moved_stream_of_left(run)
    t = run.lines["edge"][run.find("edge", What.LEFT)].t
    place = run.find("edge", What.LEFT)
    run.remove("edge", lambda line: line.stream == stream and line.what is What.COMMITTED)
    run.remove("edge", lambda line: line.stream == stream and line.what is What.SENT)
    place = run.find("edge", What.LEFT)
    opened = run.lines["edge"][run.find("edge", What.OPENED, lambda line: line.stream == stream)]
    left = run.lines["edge"][place]
    run.lines["edge"][place:place] = [
        Line(0, t, What.MOVED, stream, 1, facts={**left.facts, "why": "move"}),
        Line(0, t, What.OPENED, stream, 2, 0, opened.hash, {**opened.facts, "core": "core-us"}),
    ]
    run.change("edge", place + 2, epoch=2, facts={"core": "core-us"})
    run.remove("core-us", lambda line: line.stream == stream)
    fault = {**run.run["faults"][0], "kind": kind, "targets": ["core-us"], "t": t}
    run.run["faults"].append(fault)
    for at, line in enumerate(run.lines["core-us"]):  # it lives on for long
        run.lines["core-us"][at] = replace(line, t=line.t + 100) if line.t > t else line
    assert {one.invariant for one in run.verdict().violations} == found


def test_a_core_that_is_frozen_to_the_end_cannot_say_that_it_stops(run: Altered) -> None:
    died_thawed(run)
    run.run["faults"][0]["until"] = float("inf")
    assert run.verdict().violations == ()


def moved_stream_of_left(run: Altered) -> str:
    return run.lines["edge"][run.find("edge", What.LEFT)].stream


def test_lines_that_are_missing_make_a_run_incomplete_and_nothing_else(run: Altered) -> None:
    number = run.find("edge", What.SENT)
    run.verdict()
    path = run.folder / "edge.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
    verdict = verdict_of(run.folder)
    assert (verdict.exit_code, verdict.violations) == (INCOMPLETE, ())
    assert verdict.missing == ("edge.jsonl: 1 lines are missing or cannot be read",)


def test_the_half_line_of_a_killed_core_is_no_fault(run: Altered) -> None:
    run.verdict()
    path = run.folder / "core-eu.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    assert verdict_of(run.folder).exit_code == HELD


def test_a_node_that_still_runs_makes_a_run_incomplete(run: Altered) -> None:
    died_of_nothing(run)
    run.run["ended"] = False
    verdict = run.verdict()
    assert verdict.exit_code == INCOMPLETE
    assert "core-us still runs" in verdict.missing[0]


def test_a_node_without_a_history_makes_a_run_incomplete(run: Altered) -> None:
    run.run["nodes"].append("edge-us")
    assert run.verdict().missing == ("edge-us left no history",)


def test_a_fault_after_which_nobody_asked_makes_a_run_incomplete(run: Altered) -> None:
    late = run.lines["edge"][-1].t
    run.run["faults"].append({"t": late, "kind": "freeze", "targets": ["edge"]})
    assert run.verdict().missing == ("nothing was asked after freeze of edge",)
