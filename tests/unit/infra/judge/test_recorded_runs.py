"""Runs recorded here: what is healthy is held, and a bug in the edge itself is seen."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from judge_bed import CORES, verdict_of
from pipeline_bed import Mesh, a_mesh, ask, read, settled
from stream_bed import Edge, heard, left_at, whole

from firstlight.edge_node.answer import Event
from firstlight.edge_node.pipeline import MeshAnswer
from firstlight.infra.judge.verdict import HELD, VIOLATED


@asynccontextmanager
async def recorded(folder: Path) -> AsyncIterator[Mesh]:
    async with a_mesh(folder, folder / "histories") as mesh:
        yield mesh
        await settled(mesh, CORES)


async def test_an_answer_and_a_failover_are_held(tmp_path: Path) -> None:
    async with recorded(tmp_path) as mesh:
        await read(mesh, ask(1))
        await read(mesh, ask(1), at=10)
    assert verdict_of(tmp_path / "histories").exit_code == HELD


async def test_a_lost_link_whose_core_lives_on_is_held(tmp_path: Path) -> None:
    async with recorded(tmp_path) as mesh:
        answer = mesh.pipeline.open(ask(2))
        ids: list[int] = []
        while taken := await answer.take():
            ids += [token for event in taken for token in event.ids]
            if len(ids) == 9:
                await mesh.lose_link(answer.stats(0).core)
        answer.close()
        assert answer.stats(0).moved == 1
    assert verdict_of(tmp_path / "histories").exit_code == HELD


async def test_a_stream_that_a_client_left_and_came_back_to_is_held(tmp_path: Path) -> None:
    async with recorded(tmp_path) as mesh:
        edge = Edge(mesh)
        undisturbed = await whole(edge)
        client = await left_at(edge, 12)
        (one,) = client.choices.values()
        rest = edge.get(one.told["stream"], f"?starting_after={one.offset}")
        client.hear(await rest.ended())
        assert one.ids == undisturbed.choices[0].ids
    assert verdict_of(tmp_path / "histories").exit_code == HELD


async def test_a_newcomer_that_takes_a_running_stream_over_is_held(tmp_path: Path) -> None:
    async with recorded(tmp_path) as mesh:
        edge = Edge(mesh)
        first = edge.post()
        await first.until(lambda: len(first.sent) > 8)
        rest = edge.get(heard(first).told["stream"])
        await rest.ended()
        await first.ended()
        assert heard(rest).finish == "length"
    assert verdict_of(tmp_path / "histories").exit_code == HELD


async def test_many_streams_with_one_left_in_the_middle_are_held(tmp_path: Path) -> None:
    async with recorded(tmp_path) as mesh:
        answers = [read(mesh, ask(seed, n=2)) for seed in range(4)]
        leaving = mesh.pipeline.open(ask(9, max_tokens=300))
        await leaving.take()
        leaving.close()
        await asyncio.gather(*answers)
    verdict = verdict_of(tmp_path / "histories")
    assert (verdict.violations, verdict.missing, verdict.streams) == ((), (), 9)


async def test_an_edge_that_really_sends_a_token_twice_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = MeshAnswer.push
    pushed: list[Event] = []

    def stutter(answer: MeshAnswer, event: Event) -> None:
        pushed.append(event)
        push(answer, event)
        if len(pushed) == 5:
            push(answer, event)

    monkeypatch.setattr(MeshAnswer, "push", stutter)
    async with recorded(tmp_path) as mesh:
        ids, _, _, _ = await read(mesh, ask(1))
        assert len(ids) == 41
    verdict = verdict_of(tmp_path / "histories")
    assert verdict.exit_code == VIOLATED
    assert {one.invariant for one in verdict.violations} == {"I1"}
    assert verdict.violations[-1].what == "doubled: 41 ids were sent of an answer of 40"


async def test_an_edge_that_really_keeps_a_token_to_itself_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = MeshAnswer.push
    pushed: list[Event] = []

    def swallow(answer: MeshAnswer, event: Event) -> None:
        pushed.append(event)
        if len(pushed) != 5:
            push(answer, event)

    monkeypatch.setattr(MeshAnswer, "push", swallow)
    async with recorded(tmp_path) as mesh:
        ids, _, _, _ = await read(mesh, ask(1))
        assert len(ids) == 39
    verdict = verdict_of(tmp_path / "histories")
    assert {one.invariant for one in verdict.violations} == {"I1"}
    assert verdict.violations[-1].what == "lost: 39 ids were sent of an answer of 40"
