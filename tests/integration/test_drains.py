"""The list of nodes to drain: kept in Redis, in memory while that is away, and never lost by it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kv_index_bed import Server

from firstlight.global_lb.drains import KEY, NODES_MAX, Drains
from firstlight.shared import redis_client
from firstlight.shared.errors import CapacityError
from firstlight.shared.redis_client import Client, connect


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.end()


@asynccontextmanager
async def client(server: Server) -> AsyncIterator[Client]:
    made = connect("drains", server.config.redis, timeout_s=0.5)
    assert made is not None
    try:
        yield made
    finally:
        await made.aclose()


async def test_what_one_replica_is_told_all_hear_and_the_next_life_too(server: Server) -> None:
    async with client(server) as first, client(server) as second:
        one, other = Drains(first), Drains(second)
        await one.set("core-eu", True)
        assert (one.nodes, one.kept) == ({"core-eu"}, "redis")
        assert not other.whole
        await other.sync()
        assert (other.nodes, other.whole) == ({"core-eu"}, True)
        await other.set("core-eu", False)
        await one.sync()
        assert one.nodes == frozenset()


async def test_while_redis_is_away_memory_keeps_the_list_and_says_so(server: Server) -> None:
    async with client(server) as first, client(server) as second:
        drains = Drains(first)
        await drains.set("a", True)
        server.end()
        await drains.set("b", True)
        await drains.set("a", False)
        assert (drains.nodes, drains.kept) == ({"b"}, "memory")
        server.start()
        await drains.sync()
        assert (drains.nodes, drains.kept) == ({"b"}, "redis")
        other = Drains(second)
        await other.sync()
        assert other.nodes == {"b"}


async def test_a_redis_that_forgot_everything_is_told_again(server: Server) -> None:
    async with client(server) as first, client(server) as second:
        drains, other = Drains(first), Drains(second)
        await drains.set("a", True)
        server.end()
        server.start()  # it keeps nothing on disk
        for _ in range(3):  # the connection was lost, the list was lost, the list is told
            await drains.sync()
            assert drains.nodes == {"a"}
        await other.sync()
        assert other.nodes == {"a"}


async def test_a_replica_that_starts_without_redis_does_not_say_that_nobody_drains(
    server: Server,
) -> None:
    server.end()
    async with client(server) as first:
        drains = Drains(first)
        await drains.sync()
        assert (drains.nodes, drains.whole, drains.kept) == (frozenset(), False, "memory")


async def test_nonsense_in_redis_changes_nothing(server: Server) -> None:
    async with client(server) as first:
        drains = Drains(first)
        await drains.set("a", True)
        await redis_client.ask(first, [("DEL", KEY), ("SET", KEY, "x")], timeout_s=1.0)
        await drains.sync()
        assert (drains.nodes, drains.kept) == ({"a"}, "memory")


async def test_without_a_redis_memory_is_all_there_is() -> None:
    drains = Drains(None)
    await drains.set("a", True)
    await drains.set("b", True)
    await drains.set("a", False)
    assert (drains.nodes, drains.whole, drains.kept) == ({"b"}, True, "memory")


async def test_the_list_has_a_limit() -> None:
    drains = Drains(None)
    for number in range(NODES_MAX):
        await drains.set(f"n{number}", True)
    with pytest.raises(CapacityError, match="1024 nodes are to drain"):
        await drains.set("one more", True)
    await drains.set("n0", True)
    for number in range(3 * NODES_MAX):
        await drains.set(f"gone{number}", False)
    assert len(drains.nodes) == NODES_MAX
