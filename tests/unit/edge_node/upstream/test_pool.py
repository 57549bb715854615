"""Links that are kept: made again, whatever ended or prevented them."""

import asyncio
from dataclasses import replace
from random import Random
from typing import cast

import grpc.aio
import pytest

from firstlight.edge_node.upstream.pool import LinkPool
from firstlight.edge_node.view import MeshMemory
from firstlight.shared.clock import monotonic_s
from firstlight.shared.types import MeshView, NodeInfo, Report, Role

CORE = NodeInfo("core", Role.CORE, 1, "eu", "127.0.0.1:1")


class BrokenChannel:
    """A channel that fails as nothing should."""

    def stream_stream(self, *arguments: object, **options: object) -> object:
        raise ZeroDivisionError("a bug")

    async def close(self) -> None: ...


async def test_a_certificate_that_is_being_replaced_delays_a_link_and_no_more() -> None:
    memory, asked = MeshMemory(), asyncio.Event()
    memory.merge(MeshView("lb", 1, ((Report(CORE, 1), 0.0),)), monotonic_s())
    missing = ["node.pem"]

    def connect(address: str) -> grpc.aio.Channel:
        if missing:
            raise FileNotFoundError(missing.pop())
        asked.set()
        return grpc.aio.insecure_channel(address)

    running = asyncio.create_task(LinkPool(memory, connect, Random(1)).run())
    try:
        await asyncio.wait_for(asked.wait(), 5)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert missing == []


async def test_a_bug_in_a_link_is_logged_and_the_link_made_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory, asked, tries = MeshMemory(), asyncio.Event(), 0
    memory.merge(MeshView("lb", 1, ((Report(CORE, 1), 0.0),)), monotonic_s())

    def connect(address: str) -> grpc.aio.Channel:
        nonlocal tries
        tries += 1
        if tries == 1:
            return cast(grpc.aio.Channel, BrokenChannel())
        asked.set()
        return grpc.aio.insecure_channel(address)

    running = asyncio.create_task(LinkPool(memory, connect, Random(1)).run())
    try:
        await asyncio.wait_for(asked.wait(), 5)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert "the link to core failed" in caplog.text


async def test_a_link_begins_with_the_round_trip_that_geography_says() -> None:
    memory, asked = MeshMemory(), asyncio.Event()
    memory.merge(MeshView("lb", 1, ((Report(CORE, 1), 0.0),)), monotonic_s())
    far = {CORE.node: 123.0}

    def connect(address: str) -> grpc.aio.Channel:
        asked.set()
        return grpc.aio.insecure_channel(address)

    pool = LinkPool(memory, connect, Random(1), rtt_prior_ms=lambda core: far[core.node])
    running = asyncio.create_task(pool.run())
    try:
        await asyncio.wait_for(asked.wait(), 5)
        link = pool._links[CORE.node]
        assert (link.rtt.ms, link.rtt.measured) == (123.0, False)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_links_by_region_are_those_that_are_up_where_their_cores_say_that_they_are() -> None:
    memory, asked = MeshMemory(), asyncio.Event()
    memory.merge(MeshView("lb", 1, ((Report(CORE, 1), 0.0),)), monotonic_s())

    def connect(address: str) -> grpc.aio.Channel:
        asked.set()
        return grpc.aio.insecure_channel(address)

    pool = LinkPool(memory, connect, Random(1))
    running = asyncio.create_task(pool.run())
    try:
        await asyncio.wait_for(asked.wait(), 5)
        link = pool._links[CORE.node]
        assert pool.by_region("t") == {}
        link._welcome(replace(CORE, region="us", tokenizer_hash="t"), monotonic_s())
        assert pool.by_region("t") == {"us": {CORE.node: link}}
        assert pool.by_region("another") == {}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert pool.by_region("t") == {}
