"""An answer that another edge began: the rest comes as if it had never broken off."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pipeline_bed import Mesh, a_mesh, alone, ask, events, read

from firstlight.shared.types import FinishReason


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    async with a_mesh(tmp_path) as made:
        yield made


@pytest.mark.parametrize("had", [0, 1, 17, 39])
async def test_a_resumed_answer_brings_the_rest(mesh: Mesh, had: int) -> None:
    whole = alone(21)
    asked = ask(seed=21, committed=(tuple(whole[:had]),))
    ids, _, finish, stats = await read(mesh, asked)
    assert (ids, finish) == (whole[had:], FinishReason.LENGTH)
    assert (stats.completion_tokens, stats.moved, stats.continuation) == (40, 0, "exact")


async def test_a_resumed_answer_survives_its_core_too(mesh: Mesh) -> None:
    whole = alone(22)
    ids, _, _, stats = await read(mesh, ask(seed=22, committed=(tuple(whole[:10]),)), at=10)
    assert (ids, stats.moved) == (whole[10:], 1)


async def test_an_answer_resumed_at_its_end_needs_no_core(mesh: Mesh) -> None:
    whole = alone(23)
    for name in ("core-eu", "core-us"):
        await mesh.kill_core(name)
    await mesh.linked(0)
    ids, text, finish, stats = await read(mesh, ask(seed=23, committed=(tuple(whole),)))
    assert (ids, text, finish) == ([], "", FinishReason.LENGTH)
    assert stats.completion_tokens == 40


async def test_each_choice_is_resumed_where_it_was(mesh: Mesh) -> None:
    whole = [alone(8), await second_choice(mesh)]
    committed = (tuple(whole[0][:30]), tuple(whole[1][:4]))
    answer = mesh.pipeline.open(ask(seed=8, n=2, committed=committed))
    rest: dict[int, list[int]] = {0: [], 1: []}
    async for event in events(answer):
        rest[event.index] += event.ids
    answer.close()
    assert [rest[0], rest[1]] == [whole[0][30:], whole[1][4:]]


async def second_choice(mesh: Mesh) -> list[int]:
    answer = mesh.pipeline.open(ask(seed=8, n=2))
    ids: list[int] = []
    async for event in events(answer):
        ids += event.ids if event.index == 1 else ()
    answer.close()
    return ids


async def test_an_answer_resumed_in_another_class_says_so(mesh: Mesh) -> None:
    asked = ask(seed=21, committed=(tuple(alone(21)[:5]),), numerics_class="another")
    _, _, _, stats = await read(mesh, asked)
    assert stats.continuation == "semantic"
