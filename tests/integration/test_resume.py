"""An answer that another edge began: the rest comes as if it had never broken off."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_bed import PROMPT, Mesh, a_mesh, alone, ask, events, read

from firstlight.shared.errors import CapacityError
from firstlight.shared.stream import CREDIT_TOKENS
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


LONG = CREDIT_TOKENS + 80
"""Ids of an answer that goes on beyond the credit that a core begins with."""


@pytest.mark.parametrize(
    ("known", "has"),
    [(LONG - 20, 3), (2, LONG - 20), (0, CREDIT_TOKENS), (LONG, 0)],
    ids=["much to tell", "much to compute again", "nothing known", "all known"],
)
async def test_an_answer_of_which_more_or_less_is_known_than_the_client_has_brings_the_rest(
    mesh: Mesh, known: int, has: int
) -> None:
    asked = ask(seed=12, prompts=(PROMPT[:4],), max_tokens=LONG)
    whole, text, _, _ = await read(mesh, asked)
    had = len([token for token in whole[:has] if 97 <= token <= 122])
    resumed = replace(asked, committed=(tuple(whole[:known]),), has=(has,), numerics_class="class")
    async with asyncio.timeout(60):
        ids, rest, finish, stats = await read(mesh, resumed)
    assert (ids, rest, finish) == (whole[has:], text[had:], FinishReason.LENGTH)
    assert stats.completion_tokens == LONG


async def test_what_the_client_has_is_computed_again_in_its_class_alone(mesh: Mesh) -> None:
    asked = ask(seed=21, committed=((),), has=(5,), numerics_class="another")
    with pytest.raises(CapacityError, match="no core of class another") as caught:
        await read(mesh, asked)
    assert caught.value.code == "resume_unknown"
    assert mesh.pipeline.answers == set()


@pytest.mark.parametrize("has", [0, 9, 40])
async def test_a_running_answer_is_told_again_to_another_client(mesh: Mesh, has: int) -> None:
    answer = mesh.pipeline.open(ask(seed=21))
    async for _ in events(answer):
        if len(answer.progress(0).ids) >= min(has, 39):
            break
    while len(answer.progress(0).ids) < has:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    answer.rewind({0: has})
    ids = [token async for event in events(answer) for token in event.ids]
    assert ids == alone(21)[has:]
    answer.close()


async def test_an_ending_that_was_taken_is_told_again(mesh: Mesh) -> None:
    answer = mesh.pipeline.open(ask(seed=21))
    first = [event async for event in events(answer)]
    answer.rewind({0: 0})
    again = [event async for event in events(answer)]
    assert "".join(event.text for event in again) == "".join(event.text for event in first)
    assert [event.finish for event in again] == [None, FinishReason.LENGTH]
    assert await answer.take() == []
    answer.close()
