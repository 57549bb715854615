"""The KV index with a server that is killed, frozen, full, or answers nonsense: misses, no more."""

import asyncio
import logging
import signal
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest
from kv_index_bed import (
    CHAIN,
    LOGGER,
    NAMESPACE,
    Server,
    fates,
    found,
    relayed,
    running,
    talking,
    told,
    until,
)

from firstlight.core_node.kv import index as index_module
from firstlight.core_node.kv.index import KvIndex
from firstlight.core_node.kv.index_keys import Holder, Tier, entry_key, live_key
from firstlight.shared import telemetry


async def test_a_server_that_is_killed_means_misses_until_it_is_back(
    server: Server, two: KvIndex, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with running(server.config, "one") as one:
        one.held(CHAIN[:8], Tier.DEVICE)
        await found(two, CHAIN)
        caplog.clear()
        server.signal(signal.SIGKILL)
        for _ in range(200):
            assert await two.lookup(CHAIN) == ()
        server.start()

        async def held_again() -> tuple[Holder, ...]:
            one.held(CHAIN[:8], Tier.DEVICE)
            return await two.lookup(CHAIN)

        await until(held_again)
        off = [line for line in told(caplog) if line.startswith("the KV index is off: ")]
        on = [line for line in told(caplog) if line == "the KV index answers"]
        assert 1 <= len(off) <= 2  # of each core that noticed
        assert len(on) == len(off)


async def test_a_server_that_stands_still_costs_one_timeout_and_no_connections(
    server: Server, one: KvIndex, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(server.config, "two") as two:
        one.held(CHAIN[:8], Tier.DEVICE)
        await found(two, CHAIN)
        tasks = len(asyncio.all_tasks())
        server.signal(signal.SIGSTOP)
        try:
            before = fates()
            answers = await asyncio.gather(*(two.lookup(CHAIN) for _ in range(200)))
            assert answers == [()] * 200
            assert fates()["off"] == before["off"] + 200
            begun = monotonic()
            for _ in range(1000):
                assert await two.lookup(CHAIN) == ()
            assert monotonic() - begun < 1000 * server.config.timeout_s / 10
            assert len(asyncio.all_tasks()) <= tasks
            for number in range(20_000):
                two.held([number.to_bytes(16)], Tier.DEVICE)
            assert two.waiting == 16_384
        finally:
            server.signal(signal.SIGCONT)
        assert await found(two, CHAIN) == (Holder("one", 8, Tier.DEVICE),)
        assert len([line for line in told(caplog) if "off" in line]) <= 2  # each of the two
        async with talking(server.config) as say:
            clients = await say("CLIENT", "LIST")
            assert clients.count(b"\n") <= 2 * index_module.CONNECTIONS_MAX + 1


async def test_a_late_reply_is_never_taken_for_that_to_another_question(
    server: Server, one: KvIndex, two: KvIndex
) -> None:
    other = [bytes([200]) * 16] * 8
    one.held(CHAIN[:8], Tier.DEVICE)
    await found(two, CHAIN)
    for _ in range(3):
        server.signal(signal.SIGSTOP)
        assert await two.lookup(CHAIN) == ()
        server.signal(signal.SIGCONT)
        await found(two, CHAIN)
        assert await two.lookup(other) == ()


async def test_a_lookup_that_is_cancelled_leaves_no_reply_behind(
    server: Server, one: KvIndex, two: KvIndex
) -> None:
    other = [bytes([200]) * 16] * 8
    one.held(CHAIN[:8], Tier.DEVICE)
    await found(two, CHAIN)
    for _ in range(20):
        task = asyncio.create_task(two.lookup(CHAIN))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert await two.lookup(other) == ()
    assert await two.lookup(CHAIN) == (Holder("one", 8, Tier.DEVICE),)


async def test_a_server_without_room_refuses_writes_and_still_answers(
    server: Server, one: KvIndex, two: KvIndex, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    one.held(CHAIN[:8], Tier.DEVICE)
    await found(two, CHAIN)
    caplog.clear()
    async with talking(server.config) as say:
        await say("CONFIG", "SET", "maxmemory-policy", "noeviction")
        await say("CONFIG", "SET", "maxmemory", 1)
        dropped = telemetry.KV_INDEX_DROPPED._value.get()
        one.held([bytes(16)] * 8, Tier.DEVICE)

        async def refused() -> bool:
            return telemetry.KV_INDEX_DROPPED._value.get() > dropped and len(told(caplog)) == 2

        await until(refused)
        assert all("takes no writes: " in line and "memory" in line for line in told(caplog))
        before = fates()
        await two.lookup(CHAIN)
        assert fates()["off"] == before["off"]
        await say("CONFIG", "SET", "maxmemory", "64mb")
        assert await found(two, CHAIN) == (Holder("one", 8, Tier.DEVICE),)


async def test_a_wrong_password_means_misses_and_one_line(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "wrong").write_text("not-the-password")
    redis = replace(server.config.redis, password_file=tmp_path / "wrong")
    async with running(replace(server.config, redis=redis), "one") as one:

        async def said() -> bool:
            return bool(told(caplog))

        await until(said)
        await asyncio.sleep(1.5)
        assert await one.lookup(CHAIN) == ()
        (line,) = told(caplog)
        assert "WRONGPASS" in line or "password" in line
        assert "not-the-password" not in line


async def test_garbage_in_the_index_is_a_miss_and_is_replaced(
    server: Server, one: KvIndex, two: KvIndex
) -> None:
    keys = [entry_key(NAMESPACE, CHAIN[0], CHAIN[mark]) for mark in (7, 15, 23, 31)]
    async with talking(server.config) as say:
        await say("SET", keys[0], "a string")
        await say("HSET", keys[1], "one", "no value", b"\xff", b"\x00")
        await say("RPUSH", keys[2], "one", "7:device")
        await say("HSET", keys[3], *[word for n in range(300) for word in (f"f{n}", "7:device")])
        assert await two.lookup(CHAIN) == ()

        async def held() -> bool:
            one.held(CHAIN[:32], Tier.DEVICE)
            return [await say("HGET", key, "one") for key in keys] == [b"7:device"] * 4

        await until(held)
        assert await two.lookup(CHAIN) == (Holder("one", 32, Tier.DEVICE),)


async def test_garbage_at_a_liveness_key_is_replaced(server: Server, two: KvIndex) -> None:
    async with talking(server.config) as say:
        await say("RPUSH", live_key("one"), "x")
        async with running(server.config, "one") as one:
            one.held(CHAIN[:8], Tier.DEVICE)
            assert await found(two, CHAIN) == (Holder("one", 8, Tier.DEVICE),)


async def test_an_entry_full_of_the_dead_begins_anew(
    server: Server, one: KvIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "FIELDS_MAX", 4)
    key = entry_key(NAMESPACE, CHAIN[0], CHAIN[7])
    async with talking(server.config) as say:
        await say("HSET", key, *[word for n in range(5) for word in (f"dead-{n}", "1:device")])

        async def alone() -> bool:
            one.held(CHAIN[:8], Tier.DEVICE)
            return bool(await say("HKEYS", key) == [b"one"])

        await until(alone)


@pytest.mark.parametrize("cut_after", [0, 1, 40, 60])
async def test_a_connection_cut_between_replies_is_a_miss_and_then_forgotten(
    server: Server, one: KvIndex, cut_after: int
) -> None:
    one.held(CHAIN[:8], Tier.DEVICE)
    async with relayed(server) as relay, running(relay.config, "two") as two:
        await found(two, CHAIN)
        relay.cut_after = cut_after
        assert await two.lookup(CHAIN) == ()
        assert await found(two, CHAIN) == (Holder("one", 8, Tier.DEVICE),)


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\xff" * 200,
        b"*-7\r\n",
        b"$99999999\r\nx",
        b":1\r\n" * 400,
        b"-ERR no\r\n" * 400,
        b"*1\r\n" * 100,
        b"-LOADING Redis is loading the dataset in memory\r\n" * 70,
    ],
)
async def test_a_server_that_answers_garbage_is_a_miss(
    server: Server, one: KvIndex, garbage: bytes
) -> None:
    one.held(CHAIN[:8], Tier.DEVICE)
    async with relayed(server) as relay, running(relay.config, "two") as two:
        await found(two, CHAIN)
        relay.garbage = garbage
        for _ in range(20):
            assert await two.lookup(CHAIN) == ()
        await asyncio.sleep(1.2)
        assert await two.lookup(CHAIN) == ()
        relay.garbage = b""
        assert await found(two, CHAIN) == (Holder("one", 8, Tier.DEVICE),)
