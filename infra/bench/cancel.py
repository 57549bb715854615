"""Leave in the middle of an answer, many times, and watch the core let go of it.

    python -m firstlight.infra.bench.cancel [--times 200] [--seed 1]

In turn an HTTP/3 stream is reset, an HTTP/2 stream is reset, and an HTTP/1.1 connection is
closed, each after a random number of tokens. The clock runs from there until no core holds a block
for a running sequence. A core may finish the step that it is in, so the bound is 200 ms or one
step, whichever is longer; the longest pause between two events of any stream of the run counts as
one step. In the end the caches are flushed, and every block must be free.
"""

import argparse
import asyncio
import json
import random
import ssl
from collections.abc import Awaitable, Callable
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


@dataclass(slots=True)
class Pauses:
    """The longest pause between two events of one stream, over all streams."""

    longest_ms: float = 0.0

    def watch(self) -> Callable[[], None]:
        """For one stream: to be called at each of its events."""
        last_s: list[float] = []

        def event() -> None:
            now = monotonic_s()
            if last_s:
                self.longest_ms = max(self.longest_ms, (now - last_s.pop()) * 1e3)
            last_s.append(now)

        return event


async def leave_by_client(
    mesh: Mesh, http: HttpVersion, rng: random.Random, pauses: Pauses
) -> float:
    """HTTP/3: STOP_SENDING and RESET_STREAM; HTTP/1.1: the connection is closed. When that was."""
    seen = pauses.watch()
    edge, events = rng.choice(mesh.plan.edges), rng.randint(1, 6)
    async with open_client(edge.url, http, ca_file=mesh.ca_file) as client:
        async with client.stream("POST", PATH, headers=HEADERS, body=body(rng)) as response:
            async for _ in response.events():
                seen()
                events -= 1
                if events == 0:
                    break
            left_s = monotonic_s()
        return left_s


async def leave_by_h2_reset(mesh: Mesh, rng: random.Random) -> float:
    """One RST_STREAM on a connection that stays; returns when it was sent."""
    edge, chunks = rng.choice(mesh.plan.edges), rng.randint(1, 6)
    parts = urlsplit(edge.url)
    context = ssl.create_default_context(cafile=str(mesh.ca_file))
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
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
    # Closed long after the watch is over, so that it is the reset that ends the request.
    asyncio.get_running_loop().call_later(2 * GIVE_UP_S, writer.close)
    return monotonic_s()


@dataclass(frozen=True, slots=True)
class Held:
    """Blocks of all cores together."""

    used: int
    free: int
    cached: int
    total: int


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
        return Held(**sums)

    async def flush(self) -> None:
        """Empty all prefix caches."""
        for url in self._urls:
            (await self._client.post(f"{url}/admin/flush-cache")).raise_for_status()

    async def idle_ms(self, since_s: float) -> float:
        """Ms from `since_s` until no block is used; infinite after `GIVE_UP_S`."""
        while (await self.held()).used:
            if monotonic_s() - since_s > GIVE_UP_S:
                return float("inf")
            await asyncio.sleep(0.005)
        return (monotonic_s() - since_s) * 1e3

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


async def timed(leave: Callable[[], Awaitable[float]], cores: Cores) -> float:
    """Ms from leaving until the cores have let go."""
    return await cores.idle_ms(await leave())


async def measure(mesh: Mesh, times: int, seed: int) -> bool:
    """Run it all, print the figures; whether the bound held and nothing was left."""
    rng, cores, pauses = random.Random(seed), Cores(mesh), Pauses()
    ways: dict[str, Callable[[], Awaitable[float]]] = {
        "h3 reset": lambda: leave_by_client(mesh, "3", rng, pauses),
        "h2 reset": lambda: leave_by_h2_reset(mesh, rng),
        "h1 close": lambda: leave_by_client(mesh, "1", rng, pauses),
    }
    took: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(times):
        way = list(ways)[number % len(ways)]
        took[way].append(await timed(ways[way], cores))
    after = await cores.held()
    await cores.flush()
    await asyncio.sleep(0.5)
    flushed = await cores.held()
    await cores.close()
    bound_ms = max(BOUND_MS, pauses.longest_ms)
    for way, values in took.items():
        print(f"  {way}: p50 {percentile(values, 50):.0f} ms, max {max(values):.0f} ms")
    everything = [value for values in took.values() for value in values]
    figures = {
        "times": times,
        "bound_ms": round(bound_ms),
        "max_ms": round(max(everything)),
        "above_bound": sum(value > bound_ms for value in everything),
        "used": after.used,
        "adds_up": after.used + after.free + after.cached == after.total,
        "free_after_flush": flushed.free == flushed.total,
        "seed": seed,
    }
    print(json.dumps(figures))
    whole = figures["adds_up"] and figures["free_after_flush"]
    return figures["above_bound"] == 0 and after.used == 0 and bool(whole)


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
