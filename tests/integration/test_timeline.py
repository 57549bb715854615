"""The timeline of a request through an edge and its cores, over real links."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_bed import Mesh, a_mesh, ask, events, read

from firstlight.edge_node.answer import Ask
from firstlight.edge_node.explain import PLACED, explain
from firstlight.edge_node.timeline import Timeline
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import CapacityError, RequestError


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    async with a_mesh(tmp_path) as made:
        yield made


def asked(**changes: object) -> Ask:
    now = monotonic_s()
    return ask(**{"received_s": now, "timeline": Timeline("a", "local", now)} | changes)  # type: ignore[arg-type]


def told(one: Ask) -> dict[str, Any]:
    return explain(one.timeline, edge="edge", now=monotonic_s())


def whats(story: dict[str, Any], node: str, choice: int = 0) -> list[str]:
    return [
        entry["what"]
        for entry in story["entries"]
        if entry["node"] == node and entry.get("choice") == choice
    ]


def only(story: dict[str, Any], what: str) -> dict[str, Any]:
    [entry] = [entry for entry in story["entries"] if entry["what"] == what]
    return entry  # type: ignore[no-any-return]


async def test_an_answer_is_followed_from_the_route_to_its_end(mesh: Mesh) -> None:
    one = asked(seed=5)
    await read(mesh, one)
    story = told(one)
    assert whats(story, "edge") == ["routed", "opened", "first commit", "last id", "ended"]
    assert whats(story, "core-eu") == [
        "queued", "admitted", "first step", "first id", "finished",
    ]  # fmt: skip
    routed = only(story, "routed")
    assert (routed["core"], routed["reason"]) == ("core-eu", "home region")
    assert [candidate["core"] for candidate in routed["candidates"]] == ["core-eu", "core-us"]
    assert only(story, "ended")["finish"] == "length"
    assert only(story, "ended")["tokens"] == 40
    assert only(story, "admitted")["detail"] == "0 of 39 tokens cached"


async def test_what_a_core_said_lies_between_what_the_edge_saw(mesh: Mesh) -> None:
    one = asked(seed=5)
    await read(mesh, one)
    story = told(one)
    ms = {entry["what"]: entry["ms"] for entry in story["entries"]}
    assert ms["opened"] <= ms["queued"] <= ms["first step"] <= ms["first id"] <= ms["first commit"]
    assert ms["first commit"] <= ms["finished"] <= ms["last id"] <= ms["ended"]
    of_core = [entry for entry in story["entries"] if entry["node"] == "core-eu"]
    assert {entry["placed"] for entry in of_core} == {PLACED}


async def test_the_phases_of_an_answer_add_up_to_its_time(mesh: Mesh) -> None:
    one = asked(seed=5)
    await read(mesh, one)
    story = told(one)
    names = [phase["phase"] for phase in story["phases"]]
    assert "prefill" in names
    assert "decode" in names
    total = sum(phase["ms"] for phase in story["phases"])
    assert total == pytest.approx(only(story, "ended")["ms"], abs=0.05)


async def test_a_lost_core_took_its_marks_with_it(mesh: Mesh) -> None:
    one = asked(seed=7)
    await read(mesh, one, at=5)
    story = told(one)
    assert whats(story, "core-eu") == ["queued", "first step", "first id", "no more marks"]
    assert only(story, "no more marks")["detail"] == "lost with the core"
    assert whats(story, "core-us")[-1] == "finished"
    left, moved = only(story, "left"), only(story, "moved")
    assert (left["core"], left["how"], left["why"]) == ("core-eu", "lost", "move")
    assert (moved["from"], moved["to"], moved["why"]) == ("core-eu", "core-us", "lost")
    assert [e["epoch"] for e in story["entries"] if e["what"] == "opened"] == [1, 2]
    assert "move" in [phase["phase"] for phase in story["phases"]]


async def test_a_core_that_hands_over_tells_what_it_did(mesh: Mesh) -> None:
    one = asked(seed=7, max_tokens=200)
    answer = mesh.pipeline.open(one)
    async for _ in events(answer):
        break
    await mesh.servers["core-eu"].drain(0.0)
    async for _ in events(answer):
        pass
    answer.close()
    story = told(one)
    assert whats(story, "core-eu") == ["queued", "admitted", "first step", "first id"]
    assert only(story, "left")["how"] == "handed over"
    assert whats(story, "core-us")[-1] == "finished"


async def test_each_choice_has_its_own_entries_and_phases(mesh: Mesh) -> None:
    one = asked(seed=8, n=2)
    answer = mesh.pipeline.open(one)
    async for _ in events(answer):
        pass
    answer.close()
    story = told(one)
    assert story["streams"] == list(answer.streams)
    assert whats(story, "core-eu", 0)[-1] == whats(story, "core-eu", 1)[-1] == "finished"
    assert {phase["choice"] for phase in story["phases"]} == {0, 1}


async def test_a_core_that_refuses_the_request_says_when_but_quotes_nothing(mesh: Mesh) -> None:
    one = asked(prompts=((1, 2, 128),))
    answer = mesh.pipeline.open(one)
    with pytest.raises(RequestError, match="id below 128"):
        async for _ in events(answer):
            pass
    answer.close()
    story = told(one)
    assert (only(story, "left")["how"], only(story, "left")["reason"]) == ("refused", "request")
    gave_up = only(story, "gave up")
    assert (gave_up["kind"], gave_up["status"], gave_up["message"]) == ("request", 400, None)
    assert "128" not in str(story["entries"])


async def test_the_choices_that_were_sent_off_before_a_refusal_are_cancelled(
    tmp_path: Path,
) -> None:
    async with a_mesh(tmp_path, sequences_max=1, waiting_max=1) as mesh:
        one = asked(n=20, max_tokens=1000)
        with pytest.raises(CapacityError):
            mesh.pipeline.open(one)
        story = told(one)
        assert story["status"] == "cancelled"
        assert whats(story, "edge", 0) == ["routed", "opened", "cancelled"]
        assert only(told(one), "received")["ms"] == 0


async def test_an_answer_that_runs_says_that_its_marks_are_to_come(mesh: Mesh) -> None:
    one = asked(seed=4, max_tokens=400)
    answer = mesh.pipeline.open(one)
    async for _ in events(answer):
        break
    story = told(one)
    assert story["status"] == "running"
    assert only(story, "no more marks")["detail"] == "they come at its end"
    answer.close()
    assert only(told(one), "no more marks")["detail"] == "nobody waited for them"


async def test_nothing_is_noted_for_a_token(mesh: Mesh) -> None:
    short, long = asked(seed=5, max_tokens=4), asked(seed=5, max_tokens=200)
    await asyncio.gather(read(mesh, short), read(mesh, long))
    assert len(short.timeline.notes) == len(long.timeline.notes)
