"""Leave in the middle of an answer, many times, and watch the core let go of it.

    python -m firstlight.infra.bench.cancel [--times 200] [--seed 1]

In turn an HTTP/3 stream is reset, an HTTP/2 stream is reset, and an HTTP/1.1 connection is
closed, each after a random number of tokens. The clock runs from there until no core holds a block
for a running sequence. A core may finish the step that it is in: what took longer than 200 ms must
have been that one step, by the core's own count. In the end the caches are flushed, and every block
must be free.
"""

import argparse
import asyncio
import json
import random
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

import h2.config
import h2.connection
import h2.events
import httpx

from firstlight.infra.bench.machine import heading, percentile
from firstlight.infra.chat import Question
from firstlight.infra.client.client import open_client
from firstlight.infra.client.response import HttpVersion
from firstlight.infra.mesh import Mesh, start_mesh
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir

BOUND_MS = 200.0
GIVE_UP_S = 10.0
PATH = "/v1/chat/completions"
HEADERS = {"content-type": "application/json"}


def body(rng: random.Random) -> bytes:
    """A request that would run far longer than it is let."""
    return Question(
        f"Count slowly from {rng.randrange(1000)}.",
        seed=rng.randrange(1 << 31),
        max_tokens=400,
        ignore_eos=True,
    ).body()


async def leave_by_client(
    mesh: Mesh, http: HttpVersion, rng: random.Random, after: AsyncExitStack
) -> None:
    """HTTP/3: STOP_SENDING and RESET_STREAM; HTTP/1.1: the connection is closed."""
    edge, events = rng.choice(mesh.plan.edges), rng.randint(1, 6)
    client = await after.enter_async_context(open_client(edge.url, http, ca_file=mesh.ca_file))
    async with client.stream("POST", PATH, headers=HEADERS, body=body(rng)) as response:
        async for _ in response.events():
            events -= 1
            if events == 0:
                break


async def leave_by_h2_reset(mesh: Mesh, rng: random.Random, after: AsyncExitStack) -> None:
    """One RST_STREAM on a connection that stays."""
    edge, chunks = rng.choice(mesh.plan.edges), rng.randint(1, 6)
    parts = urlsplit(edge.url)
    context = ssl.create_default_context(cafile=str(mesh.ca_file))
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
    after.callback(writer.close)
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    connection.initiate_connection()
    pseudo = {":method": "POST", ":scheme": "https", ":authority": parts.netloc, ":path": PATH}
    connection.send_headers(1, list((pseudo | HEADERS).items()))
    connection.send_data(1, body(rng), end_stream=True)
    while chunks > 0:
        writer.write(connection.data_to_send())
        for event in connection.receive_data(await reader.read(65536)):
            if isinstance(event, h2.events.DataReceived):
                connection.acknowledge_received_data(event.flow_controlled_length, 1)
                chunks -= 1
    connection.reset_stream(1, error_code=8)
    writer.write(connection.data_to_send())
    await writer.drain()


@dataclass(frozen=True, slots=True)
class Held:
    """Blocks of all cores together, and steps that they have taken."""

    used: int
    free: int
    cached: int
    total: int
    steps: int


@dataclass(frozen=True, slots=True)
class Release:
    """How the cores let go of one request."""

    ms: float
    steps: int
    """Steps that ended between the leaving and the release: the one under way, if any."""
    used: int

    @property
    def in_time(self) -> bool:
        """Within 200 ms, or within the step that was under way."""
        return self.used == 0 and (self.ms <= BOUND_MS or self.steps <= 1)


class Cores:
    """The cores' own word, by their loopback listener."""

    def __init__(self, mesh: Mesh) -> None:
        names = [node.name for node in mesh.plan.nodes if node.name.startswith("core")]
        readies = [mesh.children[name].ready or {} for name in names]
        self._urls = [f"http://{ready['admin']}" for ready in readies]
        self._client = httpx.AsyncClient(trust_env=False, timeout=5.0)

    async def held(self) -> Held:
        """Sums over all cores."""
        answers = [(await self._client.get(f"{url}/admin/status")).json() for url in self._urls]
        blocks = [answer["blocks"] for answer in answers]
        sums = {key: sum(item[key] for item in blocks) for key in blocks[0]}
        return Held(**sums, steps=sum(answer["load"]["steps"] for answer in answers))

    async def flush(self) -> None:
        """Empty all prefix caches."""
        for url in self._urls:
            (await self._client.post(f"{url}/admin/flush-cache")).raise_for_status()

    async def let_go(self, since_s: float) -> Release:
        """Watch until no block is used; gives up after `GIVE_UP_S`."""
        first = held = await self.held()
        while held.used and monotonic_s() - since_s < GIVE_UP_S:
            await asyncio.sleep(0.005)
            held = await self.held()
        took_ms = (monotonic_s() - since_s) * 1e3
        return Release(took_ms, held.steps - first.steps, held.used)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


async def measure(mesh: Mesh, times: int, seed: int) -> bool:
    """Run it all, print the figures; whether the bound held and nothing was left."""
    rng, cores = random.Random(seed), Cores(mesh)
    ways: dict[str, Callable[[AsyncExitStack], Awaitable[None]]] = {
        "h3 reset": lambda after: leave_by_client(mesh, "3", rng, after),
        "h2 reset": lambda after: leave_by_h2_reset(mesh, rng, after),
        "h1 close": lambda after: leave_by_client(mesh, "1", rng, after),
    }
    releases: dict[str, list[Release]] = {way: [] for way in ways}
    for number in range(times):
        way = list(ways)[number % len(ways)]
        async with AsyncExitStack() as after_release:  # what stays open until the watch is over
            await ways[way](after_release)
            releases[way].append(await cores.let_go(monotonic_s()))
    after = await cores.held()
    await cores.flush()
    await asyncio.sleep(0.5)
    flushed = await cores.held()
    await cores.close()
    for way, seen in releases.items():
        took = [release.ms for release in seen]
        print(f"  {way}: p50 {percentile(took, 50):.0f} ms, max {max(took):.0f} ms")
    everything = [release for seen in releases.values() for release in seen]
    figures = {
        "times": times,
        "max_ms": round(max(release.ms for release in everything)),
        "above_200_ms": sum(release.ms > BOUND_MS for release in everything),
        "steps_max": max(release.steps for release in everything),
        "too_late": sum(not release.in_time for release in everything),
        "used": after.used,
        "adds_up": after.used + after.free + after.cached == after.total,
        "free_after_flush": flushed.free == flushed.total,
        "seed": seed,
    }
    print(json.dumps(figures))
    whole = figures["adds_up"] and figures["free_after_flush"]
    return figures["too_late"] == 0 and after.used == 0 and bool(whole)


def main() -> int:
    """The command; exit code 1 if a core held on, or a block was lost."""
    parser = argparse.ArgumentParser(description=__doc__, prog="cancel")
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(heading(), flush=True)
    with start_mesh(state_dir(), print) as mesh:
        good = asyncio.run(measure(mesh, given.times, given.seed))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
