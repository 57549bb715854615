"""The KV index with a real server: what one core holds, another finds."""

import signal
from dataclasses import replace
from pathlib import Path

from kv_index_bed import (
    CHAIN,
    EPOCH,
    NAMESPACE,
    Server,
    fates,
    found,
    lost,
    relayed,
    running,
    talking,
    until,
)

from firstlight.core_node.kv.index import IndexConfig, KvIndex, connect_index
from firstlight.core_node.kv.index_keys import Holder, Tier, entry_key, live_key


async def test_what_one_core_has_another_finds(one: KvIndex, two: KvIndex) -> None:
    one.held(CHAIN[:20], Tier.HOST)
    before = fates()
    assert await found(two, CHAIN[:20]) == (Holder("one", 20, Tier.HOST),)
    assert fates()["hit"] == before["hit"] + 1


async def test_the_longest_prefix_of_each_core_is_found_the_longest_first(
    server: Server, one: KvIndex, two: KvIndex
) -> None:
    async with running(server.config, "three") as three:
        one.held(CHAIN[:16], Tier.DEVICE)
        one.held([*CHAIN[:24], bytes(16)], Tier.DEVICE)
        two.held(CHAIN[:40], Tier.DISK)

        async def both() -> tuple[Holder, ...]:
            holders = await three.lookup(CHAIN)
            return holders if len(holders) == 2 and holders[1].blocks == 24 else ()

        assert await until(both) == (
            Holder("two", 40, Tier.DISK),
            Holder("one", 24, Tier.DEVICE),
        )
        assert await three.lookup(CHAIN, beyond=24) == (Holder("two", 40, Tier.DISK),)
        assert await three.lookup(CHAIN, beyond=40) == ()
        assert await three.lookup(CHAIN[1:]) == ()


async def test_a_core_does_not_find_itself(one: KvIndex, two: KvIndex) -> None:
    one.held(CHAIN[:8], Tier.DEVICE)
    await found(two, CHAIN)
    assert await one.lookup(CHAIN) == ()


async def test_a_core_that_leaves_is_found_no_more(server: Server, two: KvIndex) -> None:
    async with running(server.config, "one") as one:
        one.held(CHAIN[:8], Tier.DEVICE)
        await found(two, CHAIN)
    assert await two.lookup(CHAIN) == ()


async def test_a_core_that_dies_is_found_until_its_liveness_key_expires(
    server: Server, two: KvIndex
) -> None:
    async with running(server.config, "one", leave=False) as one:
        one.held(CHAIN[:8], Tier.DEVICE)
        await found(two, CHAIN)
    assert await two.lookup(CHAIN) == (Holder("one", 8, Tier.DEVICE),)
    await lost(two, CHAIN)
    async with talking(server.config) as say:
        assert await say("EXISTS", live_key("one")) == 0
        assert await say("EXISTS", entry_key(NAMESPACE, CHAIN[0], CHAIN[7])) == 1


async def test_entries_of_an_epoch_that_is_over_are_misses_and_go_away(
    server: Server, two: KvIndex
) -> None:
    async with running(server.config, "one", epoch=7) as one:
        one.held(CHAIN[:8], Tier.DEVICE)
        await found(two, CHAIN)
    async with running(server.config, "one", epoch=8), talking(server.config) as say:
        await until(lambda: say("EXISTS", live_key("one")))
        assert await two.lookup(CHAIN) == ()
        key = entry_key(NAMESPACE, CHAIN[0], CHAIN[7])

        async def deleted() -> bool:
            return await say("EXISTS", key) == 0

        await until(deleted)


async def test_when_caches_are_emptied_what_was_written_before_is_nobodys(
    one: KvIndex, two: KvIndex
) -> None:
    one.held(CHAIN[:24], Tier.DEVICE)
    await found(two, CHAIN)
    one.forget_all()
    await lost(two, CHAIN)
    one.held(CHAIN[:8], Tier.DEVICE)
    assert await found(two, CHAIN) == (Holder("one", 8, Tier.DEVICE),)


async def test_a_late_deletion_spares_what_its_node_wrote_in_a_new_epoch(
    server: Server, one: KvIndex, two: KvIndex
) -> None:
    one.held(CHAIN[:8], Tier.DEVICE)
    await found(two, CHAIN)
    async with talking(server.config) as say:
        key = entry_key(NAMESPACE, CHAIN[0], CHAIN[7])
        await say("HSET", key, "one", "8:device")
        two.absent(CHAIN, 8, Holder("one", 24, Tier.DEVICE, EPOCH))
        two.held(CHAIN[:8], Tier.DEVICE)  # written after the deletion
        await until(lambda: say("HGET", key, "two"))
        assert await say("HGET", key, "one") == b"8:device"


async def test_a_holder_that_had_not_what_it_said_is_found_with_less(
    one: KvIndex, two: KvIndex
) -> None:
    one.held(CHAIN[:24], Tier.DEVICE)
    await found(two, CHAIN)

    async def holds(blocks: int) -> bool:
        return [holder.blocks for holder in await two.lookup(CHAIN)] == [blocks]

    await until(lambda: holds(24))
    two.absent(CHAIN, 9, Holder("one", 24, Tier.DEVICE, EPOCH))
    await until(lambda: holds(8))


async def test_entries_expire(server: Server, one: KvIndex, two: KvIndex) -> None:
    one.held(CHAIN[:8], Tier.DEVICE)
    await found(two, CHAIN)
    async with talking(server.config) as say:
        left = await say("TTL", entry_key(NAMESPACE, CHAIN[0], CHAIN[7]))
        assert 3500 < left <= 3600
        assert 0 < await say("TTL", live_key("one")) <= 5


async def test_a_lookup_is_one_round_trip_on_one_connection(
    server: Server, one: KvIndex, two: KvIndex
) -> None:
    one.held(CHAIN[:8], Tier.DEVICE)
    await found(two, CHAIN)
    async with relayed(server) as relay, running(relay.config, "three", leave=False) as three:
        await found(three, CHAIN)
        before = relay.turns
        for _ in range(20):
            assert await three.lookup(CHAIN)
        assert 20 <= relay.turns - before <= 22  # a beat may come in between
        assert relay.connections <= 2


async def test_after_a_flush_what_is_still_held_is_written_again(
    server: Server, one: KvIndex, two: KvIndex
) -> None:
    one.held(CHAIN[:8], Tier.DEVICE)
    await found(two, CHAIN)
    async with talking(server.config) as say:
        await say("FLUSHALL")
    await lost(two, CHAIN)

    async def held_again() -> tuple[Holder, ...]:
        one.held(CHAIN[:8], Tier.DEVICE)
        return await two.lookup(CHAIN)

    assert await until(held_again) == (Holder("one", 8, Tier.DEVICE),)


async def test_without_a_server_in_the_settings_everything_is_a_miss() -> None:
    async with running(IndexConfig(), "one") as index:
        index.held(CHAIN, Tier.DEVICE)
        index.absent(CHAIN, 8, Holder("two", 24, Tier.DEVICE, EPOCH))
        assert index.waiting == 0
        before = fates()
        assert await index.lookup(CHAIN) == ()
        assert fates()["off"] == before["off"] + 1


async def test_a_core_without_peers_asks_nobody(server: Server, one: KvIndex) -> None:
    client = connect_index("kv.index", server.config)
    alone = KvIndex(client, namespace=NAMESPACE, node="one", epoch=1, peers=lambda: ("one",))
    assert await alone.lookup(CHAIN) == ()
    await alone.close()


async def test_a_cluster_is_asked_as_one_server_is(tmp_path: Path) -> None:
    server = Server(tmp_path, "cluster-enabled yes\n")
    try:
        async with talking(server.config) as say:
            assert await say("CLUSTER", "ADDSLOTSRANGE", 0, 16383) == b"OK"
        config = replace(server.config, redis=replace(server.config.redis, cluster=True))
        async with running(config, "one") as one, running(config, "two") as two:
            one.held(CHAIN[:24], Tier.HOST)
            assert await found(two, CHAIN[:12]) == (Holder("one", 8, Tier.HOST),)
            await found(two, CHAIN)
            two.absent(CHAIN, 9, Holder("one", 24, Tier.DEVICE, EPOCH))

            async def less() -> bool:
                return [holder.blocks for holder in await two.lookup(CHAIN)] == [8]

            await until(less)
            server.signal(signal.SIGKILL)
            for _ in range(50):
                assert await two.lookup(CHAIN) == ()
            server.start()

            async def held_again() -> tuple[Holder, ...]:
                one.held(CHAIN[:8], Tier.HOST)
                return await two.lookup(CHAIN)

            assert await until(held_again, 60.0) == (Holder("one", 8, Tier.HOST),)
            server.signal(signal.SIGSTOP)
            for _ in range(50):
                assert await two.lookup(CHAIN) == ()
            server.signal(signal.SIGCONT)
            await until(held_again, 60.0)
    finally:
        server.end()
