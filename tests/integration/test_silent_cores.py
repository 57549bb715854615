"""Cores that take requests and never answer, or refuse at once although they have room."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pipeline_bed import PROMPT, Mesh, a_mesh, alone, ask, events, read

from firstlight.shared.clock import monotonic_s
from firstlight.shared.stream import CREDIT_TOKENS


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    async with a_mesh(tmp_path) as made:
        yield made


async def test_a_request_that_a_core_took_and_forgot_is_answered_by_another(mesh: Mesh) -> None:
    mesh.failing["core-eu"].silent = True
    began_s = monotonic_s()
    async with asyncio.timeout(20):
        ids, _, _, stats = await read(mesh, ask(seed=5))
    assert ids == alone(5)
    assert (stats.core, stats.moved) == ("core-us", 1)
    assert monotonic_s() - began_s < 6, "3 s, and what a busy machine adds"


async def test_streams_that_began_before_the_core_fell_silent_lose_no_id(mesh: Mesh) -> None:
    long = asyncio.create_task(read(mesh, ask(seed=4, max_tokens=600)))
    await asyncio.sleep(0.2)
    mesh.failing["core-eu"].silent = True
    async with asyncio.timeout(30):
        ids, _, _, stats = await read(mesh, ask(seed=5))
        before, *_ = await long
    assert (ids, stats.core) == (alone(5), "core-us")
    assert before == alone(4, 600)


async def test_a_core_that_was_found_out_is_not_asked_again(mesh: Mesh) -> None:
    mesh.failing["core-eu"].silent = True
    async with asyncio.timeout(20):
        await read(mesh, ask(seed=1))
        await mesh.linked(2)
        for seed in range(2, 8):
            *_, stats = await read(mesh, ask(seed=seed))
            assert (stats.core, stats.moved) == ("core-us", 0)


async def test_new_requests_avoid_a_core_long_before_it_is_found_out(mesh: Mesh) -> None:
    mesh.failing["core-eu"].silent = True
    first = asyncio.create_task(read(mesh, ask(seed=1)))
    link = mesh.pool.link("core-eu")
    assert link is not None
    async with asyncio.timeout(20):
        while not link.suspect:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        answer = mesh.pipeline.open(ask(seed=2))
        assert answer.stats(0).core == "core-us"
        assert not first.done()
        answer.close()
        await first


async def test_a_core_whose_sequences_wait_for_credit_is_innocent(mesh: Mesh) -> None:
    answer = mesh.pipeline.open(ask(seed=6, prompts=(PROMPT[:4],), max_tokens=1500))
    link = mesh.pool.link("core-eu")
    assert link is not None
    async with asyncio.timeout(30):
        while answer.stats(0).completion_tokens < CREDIT_TOKENS:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    for _ in range(100):
        await asyncio.sleep(0.02)
        assert not link.suspect
    assert mesh.pool.link("core-eu") is link
    answer.close()


async def test_requests_come_and_go_without_suspicion(mesh: Mesh) -> None:
    links = {name: mesh.pool.link(name) for name in ("core-eu", "core-us")}
    await asyncio.gather(*(read(mesh, ask(seed=seed, max_tokens=3)) for seed in range(30)))
    for seed in range(10):
        answer = mesh.pipeline.open(ask(seed=seed, max_tokens=400))
        async for _ in events(answer):
            break
        answer.close()
    await asyncio.sleep(0.5)
    assert {name: mesh.pool.link(name) for name in links} == links
    assert not any(link.suspect for link in links.values() if link is not None)


async def test_a_core_that_refuses_at_once_although_it_has_room_is_asked_once_a_while(
    mesh: Mesh,
) -> None:
    mesh.failing["core-eu"].refuse = True
    link = mesh.pool.link("core-eu")
    assert link is not None
    for seed in range(12):
        *_, stats = await read(mesh, ask(seed=seed, max_tokens=2))
        assert stats.core == "core-us"
    assert link._opens_sent <= 3
    mesh.failing["core-eu"].refuse = False
    async with asyncio.timeout(20):
        while (await read(mesh, ask(max_tokens=2)))[3].core != "core-eu":  # noqa: ASYNC110
            await asyncio.sleep(0.1)
