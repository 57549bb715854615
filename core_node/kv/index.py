"""The KV index: which core of the region holds which prefix. It lives in Redis; see `index_keys`.

Nothing here is needed to answer a request. So a lookup ends within 50 ms and a failure is a miss;
after one the server is left alone until a probe in the background gets through. Writes happen in
the background; those that cannot be made are dropped. The entries of a node count only while its
liveness key stands, which it renews, so nothing has to be cleaned up after a node that died.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from firstlight.core_node.kv.index_keys import (
    READS_MAX,
    Found,
    Holder,
    Tier,
    entry_key,
    epoch_value,
    judge,
    judge_writes,
    live_epochs,
    live_key,
    marks_to_read,
    write_commands,
)
from firstlight.core_node.kv.index_queue import WriteQueue
from firstlight.shared import redis_client, telemetry
from firstlight.shared.blocks import checkpoints
from firstlight.shared.breaker import Breaker
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError, PeerError
from firstlight.shared.redis_client import Client, Command, RedisConfig

LIVE_S = 5
"""A node that has not renewed its liveness key for so long counts as dead."""
BEAT_EVERY_S = 1.5
FLUSH_EVERY_S = 0.1
"""Writes wait this long for company."""
BATCH_MAX = 128
"""Writes in one round trip."""
BACKGROUND_TIMEOUT_S = 0.5
"""For what no request waits for."""
LOOKUPS_MAX = 64
"""Lookups at the same time; more are misses."""
CONNECTIONS_MAX = 8
"""In a cluster: to each node."""
PEERS_MAX = 512
"""Nodes whose liveness a lookup asks for; beyond that the last ones are not found."""
FIELDS_MAX = 1024
"""Nodes in one entry. One that holds more is full of the dead, and begins anew."""

logger = logging.getLogger("firstlight.kv.index")


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """Where the index is and how long to wait for it."""

    redis: RedisConfig = field(default_factory=RedisConfig)
    expiry_s: float = 3600.0
    """An entry that nobody wrote again for so long is gone. The server's LRU may be faster."""
    timeout_s: float = 0.05
    """A lookup that takes longer is a miss."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for times that make no sense."""
        if not 1.0 <= self.expiry_s <= 1e7:
            raise ConfigError(f"expiry_s is {self.expiry_s}, not between 1 and 10 million")
        if not 0.0 < self.timeout_s <= 10.0:
            raise ConfigError(f"timeout_s is {self.timeout_s}, not above 0 and at most 10")


def connect_index(setting: str, config: IndexConfig) -> Client | None:
    """The client for `KvIndex`; None if there is no index. `ConfigError` names `setting`."""
    return redis_client.connect(
        f"{setting}.redis",
        config.redis,
        timeout_s=config.timeout_s,
        connections_max=CONNECTIONS_MAX,
    )


class KvIndex:
    """One core's view of the index and its entries there. Only `run` talks without being asked."""

    def __init__(
        self,
        client: Client | None,
        *,
        namespace: str,
        node: str,
        epoch: int,
        peers: Callable[[], Sequence[str]],
        config: IndexConfig | None = None,
    ) -> None:
        """`client`: None if there is no index, then every lookup is a miss.

        `peers`: names of the cores whose blocks may be used, ours or not, the likeliest first.
        """
        self.epoch = epoch
        self._client = client
        self._namespace = namespace
        self._node = node
        self._peers = peers
        self._config = config or IndexConfig()
        self._queue = WriteQueue(node, refresh_s=self._config.expiry_s / 2)
        self._breaker = Breaker(monotonic_s())
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX - 1)  # one is left to the background
        self._lookups = 0
        self._beat_at = 0.0
        self._beaten: bytes | None = None
        """What our liveness key held after the last renewal."""
        self._refusing = self._off = False
        """What was last said of it."""
        self._counted = 0
        telemetry.KV_INDEX_OPEN.set(client is not None)

    @property
    def waiting(self) -> int:
        """Writes that still wait for their turn."""
        return len(self._queue)

    async def lookup(self, hashes: Sequence[bytes], *, beyond: int = 0) -> tuple[Holder, ...]:
        """Which live peers hold more than `beyond` leading blocks of this chain, most first.

        `hashes` start with the chain's first block. Nobody, if the index does not answer in time.
        """
        nodes = [node for node in self._peers() if node != self._node][:PEERS_MAX]
        marks = marks_to_read(len(hashes), beyond)
        if self._client is None or self._breaker.open or self._lookups >= LOOKUPS_MAX:
            telemetry.KV_INDEX_LOOKUPS.labels(fate="off").inc()
            return ()
        found: Found | None = Found((), ())
        if nodes and marks:
            self._lookups += 1
            try:
                with telemetry.KV_INDEX_SECONDS.time():
                    found = await self._read(self._client, nodes, marks, hashes)
            finally:
                self._lookups -= 1
        fate = "off" if found is None else "hit" if found.holders else "miss"
        telemetry.KV_INDEX_LOOKUPS.labels(fate=fate).inc()
        return found.holders if found is not None else ()

    async def _read(
        self, client: Client, nodes: Sequence[str], marks: Sequence[int], hashes: Sequence[bytes]
    ) -> Found | None:
        commands: list[Command] = [("MGET", *map(live_key, nodes))]
        for mark in marks:
            commands.append(("HGETALL", entry_key(self._namespace, hashes[0], hashes[mark])))
        try:
            async with asyncio.timeout(self._config.timeout_s), self._slots:
                live, *entries = await redis_client.ask(
                    client, commands, timeout_s=self._config.timeout_s
                )
        except (PeerError, TimeoutError) as error:
            self._failed(error)
            return None
        if isinstance(live, Exception):
            self._failed(live)
            return None
        alive = live_epochs(nodes, live)
        found = judge(marks, entries, alive)
        for mark, node, epoch in found.stale:
            self._queue.delete(hashes, (mark,), node, epoch)
        return found

    def held(self, hashes: Sequence[bytes], tier: Tier) -> None:
        """We have all blocks of this chain, the last in `tier`; others will hear of it soon."""
        if self._client is not None and hashes:
            self._queue.hold(hashes, tier, monotonic_s())
            self._count_dropped()

    def absent(self, hashes: Sequence[bytes], blocks: int, holder: Holder) -> None:
        """A holder turned out not to have the first `blocks` blocks of this chain, nor more of it.

        Of no effect on what it wrote in a later epoch.
        """
        if self._client is not None and hashes:
            marks = [mark for mark in checkpoints(len(hashes)) if mark + 1 >= blocks]
            self._queue.delete(hashes, marks[:READS_MAX], holder.node, holder.epoch)
            self._count_dropped()

    def gone(self, block_hash: bytes) -> None:
        """We turned out not to have this block; whoever asked for it deletes our entry."""
        self._queue.gone(block_hash)

    def forget_all(self) -> None:
        """Our caches were emptied: under a new epoch, whatever we wrote is nobody's."""
        self.epoch += 1
        self._queue.clear()
        self._beat_at = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Live, write and probe until `stop`; then tell the others that we are gone."""
        client = self._client
        if client is None:
            await stop.wait()
            return
        while not stop.is_set():
            if monotonic_s() >= (self._breaker.probe_at if self._breaker.open else self._beat_at):
                await self._beat(client)
            while self._may_flush() and not stop.is_set():
                await self._flush(client)
            await _wait(stop, FLUSH_EVERY_S)
        if not self._breaker.open:
            await self._ask(client, [("DEL", live_key(self._node))])

    async def close(self) -> None:
        """Close the connections. After `run` has ended."""
        if self._client is not None:
            await self._client.aclose()

    async def _beat(self, client: Client) -> None:
        """Renew our liveness key; see whether the server answers, and whether it lost its data.

        A probe is as short as a lookup, so that a server that is too slow for one stays left alone.
        """
        self._beat_at = monotonic_s() + BEAT_EVERY_S
        timeout_s = BACKGROUND_TIMEOUT_S
        if self._breaker.open:
            timeout_s = self._config.timeout_s
            try:
                await redis_client.prepare(client, timeout_s=2 * BACKGROUND_TIMEOUT_S)
            except PeerError as error:
                self._failed(error)
                return
        mine, value = live_key(self._node), epoch_value(self.epoch)
        commands: list[Command] = [("GET", mine), ("SET", mine, value, "EX", LIVE_S)]
        replies = await self._ask(client, commands, timeout_s)
        if replies is None:
            return
        before, renewed = replies
        if isinstance(before, Exception) and isinstance(renewed, Exception):
            self._failed(before)
            return
        if self._breaker.succeeded():
            telemetry.KV_INDEX_OPEN.set(0)
            # As loud as its failure was; at the start there was none.
            logger.log(logging.WARNING if self._off else logging.INFO, "the KV index answers")
            self._off = False
        if before != self._beaten:  # flushed, or started again, or it stood still
            self._queue.forget_written()
        self._beaten = None if isinstance(renewed, Exception) else value
        self._refused(str(renewed) if isinstance(renewed, Exception) else "")

    def _may_flush(self) -> bool:
        return len(self._queue) > 0 and not self._breaker.open and monotonic_s() < self._beat_at

    async def _flush(self, client: Client) -> None:
        """Make the oldest writes; those that are refused are lost."""
        writes = self._queue.take(BATCH_MAX)
        commands: list[Command] = []
        for write in writes:
            commands += write_commands(
                write, self._namespace, epoch=self.epoch, expiry_s=round(self._config.expiry_s)
            )
        replies = await self._ask(client, commands)
        if replies is None:
            self._queue.lost(writes)
        else:
            written = judge_writes(writes, replies, fields_max=FIELDS_MAX)
            self._queue.lost(written.lost)
            if written.spoiled:
                deletes: list[Command] = [
                    ("DEL", entry_key(self._namespace, write.first, write.block))
                    for write in written.spoiled
                ]
                await self._ask(client, deletes)
        self._count_dropped()

    async def _ask(
        self, client: Client, commands: Sequence[Command], timeout_s: float = BACKGROUND_TIMEOUT_S
    ) -> list[Any] | None:
        try:
            return await redis_client.ask(client, commands, timeout_s=timeout_s)
        except PeerError as error:
            self._failed(error)
            return None

    def _failed(self, error: Exception) -> None:
        if self._breaker.failed(monotonic_s()):
            telemetry.KV_INDEX_OPEN.set(1)
            self._off = True
            words = str(error) or f"no answer within {self._config.timeout_s} s"
            logger.warning("the KV index is off: %s", words)

    def _refused(self, reason: str) -> None:
        """Say so when writes begin to be refused, and when they no longer are."""
        if bool(reason) != self._refusing:
            self._refusing = bool(reason)
            if reason:
                logger.warning("the KV index takes no writes: %s", reason)
            else:
                logger.warning("the KV index takes writes again")

    def _count_dropped(self) -> None:
        telemetry.KV_INDEX_DROPPED.inc(self._queue.dropped - self._counted)
        self._counted = self._queue.dropped


async def _wait(stop: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), timeout_s)
    except TimeoutError:
        return
