"""A race that is left in its last moment leaves no connection open."""

import asyncio
from typing import Any

import pytest

from firstlight.infra.client.edges import Edge, Ranked
from firstlight.infra.client.race import Lane, lanes_of
from firstlight.infra.client.racing import Won, run_race

URLS = ("https://a:1", "https://b:1")


class Connection:
    """That of one lane: what became of it."""

    def __init__(self) -> None:
        self.closed = False

    async def aclose(self) -> None:
        self.closed = True

    abort = aclose


class Course:
    """One lane wins at once; the other takes its time to close when it is broken off."""

    def __init__(self) -> None:
        self.winner = Connection()
        self.closing, self.may_close = asyncio.Event(), asyncio.Event()
        self.loser_closed = False

    async def handshake(self, lane: Lane) -> Any:
        if lane.edge.url == URLS[1]:
            return self.winner
        try:
            await asyncio.Event().wait()
        finally:
            self.closing.set()
            await self.may_close.wait()
            self.loser_closed = True

    async def run(self) -> Won:
        ranked = [Ranked(Edge(url, "", "", None, quic=True), None, "") for url in URLS]
        lanes = lanes_of(ranked, only="3")
        return await run_race(lanes, self.handshake, limit_s=5.0, failed=lambda lane, why: None)


async def test_who_wins_is_not_closed() -> None:
    course = Course()
    course.may_close.set()
    assert (await course.run()).client is course.winner
    assert not course.winner.closed
    assert course.loser_closed


async def test_a_race_that_is_left_while_losers_are_broken_off_closes_the_winner_too() -> None:
    course = Course()
    racing = asyncio.create_task(course.run())
    await course.closing.wait()
    racing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await racing
    assert course.winner.closed
    assert not course.loser_closed
    course.may_close.set()
    await asyncio.sleep(0.01)
    assert course.loser_closed, "it was cancelled while it closed itself"


async def test_who_was_connected_in_the_same_moment_as_the_winner_is_closed() -> None:
    made = [Connection(), Connection()]
    gate = asyncio.Event()

    async def handshake(lane: Lane) -> Any:
        await gate.wait()
        return made[URLS.index(lane.edge.url)]

    ranked = [Ranked(Edge(url, "", "", None, quic=True), None, "") for url in URLS]
    racing = asyncio.create_task(
        run_race(lanes_of(ranked, only="3"), handshake, limit_s=5.0, failed=lambda lane, why: None)
    )
    await asyncio.sleep(0.6)  # the second begins after a quarter of a second at most
    gate.set()
    won = await racing
    assert [one.closed for one in made] == [one is not won.client for one in made]
