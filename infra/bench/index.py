"""The KV index at its size: what a lookup takes, how often it goes there and back, what it weighs.

    python -m firstlight.infra.bench.index [--lookups 3000] [--blocks 1000000]

A fresh Valkey server on loopback is filled by the index' own writer with chains of 513 blocks (64
checkpoints and the last one), each held by one of four nodes. Then a core looks up prompts of 8,192
tokens (512 blocks) that only others have, one after the other, on a loop with nothing else to do
but its own background. A hundred more go through a relay that counts how often bytes towards the
server follow bytes back. `lookup_cpu_ms` is what this process computes for one: where others use
the machine as well, it says more than the time does. `used_memory` is the server's own figure.
Exit code 1 if p99 is above 2 ms, a lookup takes more than one round trip, or 200 MB do not do.
"""

import argparse
import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from firstlight.core_node.kv.index import IndexConfig, KvIndex, connect_index
from firstlight.core_node.kv.index_keys import Tier
from firstlight.infra.bench.machine import cold_factor, heading, loop_ms, percentile
from firstlight.infra.ports import free_ports
from firstlight.infra.valkey import ValkeyPlan, start_valkey, wait_answering
from firstlight.shared.blocks import HASH_BYTES
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import PeerError
from firstlight.shared.lifecycle import loop_factory
from firstlight.shared.redis_client import Client, RedisConfig, ask

BLOCKS, ASKED = 513, 512
RELAYED = 100
NODES = ("core-a", "core-b", "core-c", "core-d")
NAMESPACE = "0123456789abcdef"
WARM_UP = 200
SETTLE_S = 0.5
"""Until a background that has just begun has made its first beat; longer than the last write."""
WAITING_MAX = 4000
P99_MAX_MS = 2.0
MEMORY_MAX_BYTES = 200_000_000


class Relay:
    """Passes bytes on, and counts how often it turned round."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.turns = 0
        self._asked = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        up = asyncio.create_task(self._pass(reader, back, ask=True))
        try:
            await self._pass(there, writer, ask=False)
        except (asyncio.CancelledError, ConnectionError):  # the benchmark is over
            pass
        finally:
            up.cancel()
            back.close()
            writer.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, ask: bool
    ) -> None:
        while data := await reader.read(1 << 16):
            if ask and not self._asked:
                self.turns += 1
            self._asked = ask
            writer.write(data)
            await writer.drain()


def chain(number: int) -> list[bytes]:
    """Hashes that no other chain has."""
    rng = random.Random(number)
    return [rng.randbytes(HASH_BYTES) for _ in range(BLOCKS)]


def index_of(client: Client | None, node: str) -> KvIndex:
    """One node's index."""
    return KvIndex(client, namespace=NAMESPACE, node=node, epoch=1, peers=lambda: NODES)


async def used_bytes(client: Client) -> int:
    """What the server says that it uses."""
    (info,) = await ask(client, [("INFO", "memory")], timeout_s=5.0)
    lines = dict(line.split(":", 1) for line in info.decode().split("\r\n") if ":" in line)
    return int(lines["used_memory"])


async def fill(client: Client, chains: int) -> None:
    """Write all chains through the index of their node."""
    indexes = [index_of(client, node) for node in NODES]
    async with background(*indexes):
        for number in range(chains):
            index = indexes[number % len(indexes)]
            index.held(chain(number), Tier.DEVICE)
            await written(index, WAITING_MAX)
        for index in indexes:
            await written(index, 0)


async def written(index: KvIndex, waiting_max: int) -> None:
    """Until no more than so many of its writes wait."""
    while index.waiting > waiting_max:  # noqa: ASYNC110 (nobody else needs to hear of it)
        await asyncio.sleep(0.01)


@asynccontextmanager
async def background(*indexes: KvIndex) -> AsyncIterator[None]:
    """The indexes run while the block does, and answer from its start."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for index in indexes:
            tasks.create_task(index.run(stop))
        await asyncio.sleep(SETTLE_S)
        yield
        await asyncio.sleep(SETTLE_S)
        stop.set()


async def look_up(index: KvIndex, chains: Sequence[list[bytes]]) -> list[float]:
    """Milliseconds of each lookup; `PeerError` if one does not find its chain."""
    times = []
    for hashes in chains:
        begun_s = monotonic_s()
        found = await index.lookup(hashes)
        times.append((monotonic_s() - begun_s) * 1e3)
        if [holder.blocks for holder in found] != [ASKED]:
            raise PeerError(f"a chain was not found: {found}")
    return times


async def measure(config: IndexConfig, port: int, given: argparse.Namespace) -> dict[str, Any]:
    """All figures of one server that is empty."""
    client = connect_index("bench", config)
    assert client is not None
    empty = await used_bytes(client)
    chains, rng = max(1, given.blocks // BLOCKS), random.Random(given.seed)
    begun_s = monotonic_s()
    await fill(client, chains)
    fill_s = monotonic_s() - begun_s
    used = await used_bytes(client)
    index = index_of(client, "asking")
    alive = [index_of(client, node) for node in NODES]
    async with background(index, *alive):
        some = [chain(rng.randrange(chains))[:ASKED] for _ in range(WARM_UP)]
        await look_up(index, some)
        cpu_s = -sum(os.times()[:2])
        times = await look_up(index, rng.choices(some, k=given.lookups))
        cpu_s += sum(os.times()[:2])
        turns = await relayed(config, port, some[:RELAYED])
    await client.aclose()
    return {
        "lookups": len(times),
        "lookup_p50_ms": round(percentile(times, 50), 3),
        "lookup_p99_ms": round(percentile(times, 99), 3),
        "lookup_cpu_ms": round(cpu_s * 1e3 / len(times), 3),
        "round_trips_per_lookup": turns / RELAYED,
        "blocks": chains * BLOCKS,
        "fill_s": round(fill_s, 1),
        "used_memory_empty": empty,
        "used_memory": used,
    }


async def relayed(config: IndexConfig, port: int, chains: Sequence[list[bytes]]) -> int:
    """Round trips that these lookups take, all of them together."""
    relay = Relay(port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = connect_index("bench", replace(config, redis=replace(config.redis, url=url)))
    index, stop = index_of(client, "relayed"), asyncio.Event()
    running = asyncio.create_task(index.run(stop))
    await asyncio.sleep(SETTLE_S)
    running.cancel()  # or its beats were counted
    await asyncio.wait((running,))
    before = relay.turns
    await look_up(index, chains)
    await index.close()
    server.close()
    return relay.turns - before


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="index")
    parser.add_argument("--lookups", type=int, default=3000)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(heading(), flush=True)
    (port,) = free_ports(1, random.SystemRandom())
    plan = ValkeyPlan("valkey", "bench", "127.0.0.1", port)
    with TemporaryDirectory() as directory:
        child = start_valkey(plan, Path(directory))
        try:
            wait_answering(child, plan)
            redis = RedisConfig(url=plan.url, password_file=plan.password_file(Path(directory)))
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                figures = runner.run(measure(IndexConfig(redis=redis), port, given))
        finally:
            child.kill()
            child.wait(10)
            child.close()
    speed = {"python_loop_ms": round(loop_ms(), 1), "cold_factor": round(cold_factor(), 1)}
    print(json.dumps(speed | figures))
    held = (
        figures["lookup_p99_ms"] <= P99_MAX_MS
        and figures["round_trips_per_lookup"] == 1
        and figures["used_memory"] <= MEMORY_MAX_BYTES
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
