"""Kill the edge in the middle of a stream, many times, and compare what the client put together.

    python -m firstlight.infra.bench.resume [--streams 100] [--seed 1]

Each stream is asked once undisturbed, then again with its edge killed (SIGKILL) after a random
number of tokens; every second time the core that serves the rest is killed in its turn. The client
goes on at the other edge by itself; ids and text must be the same. The gap is the longest pause
between two pieces of text at the client, the kill in it.
"""

import argparse
import asyncio
import json
import random
from dataclasses import dataclass

from firstlight.infra.bench.failover import TOKENS, come_back, question
from firstlight.infra.bench.machine import heading, percentile
from firstlight.infra.chat import ask
from firstlight.infra.client.response import HttpVersion
from firstlight.infra.mesh import Mesh, start_mesh
from firstlight.infra.reply import Reply
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir

VERSIONS: tuple[HttpVersion, ...] = ("3", "2", "1")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One stream with its edge killed."""

    same: bool
    resumed: int
    moved: int
    gap_ms: float


class Watch:
    """Sees a stream arrive: kills its edge, then perhaps the core of the rest."""

    def __init__(self, mesh: Mesh, edge: str, kill_after: int, *, core_too: bool) -> None:
        self.killed: list[str] = []
        self.gap_s = 0.0
        self._mesh, self._edge = mesh, edge
        self._kill_after, self._core_too = kill_after, core_too
        self._last_s: float | None = None

    def on_text(self, text: str, reply: Reply) -> None:
        """A piece of the stream is here."""
        now, count = monotonic_s(), len(reply.token_ids)
        if text and self._last_s is not None:
            self.gap_s = max(self.gap_s, now - self._last_s)
        self._last_s = now if text else self._last_s
        if not self.killed and count >= self._kill_after:
            self._kill(self._edge)
        elif (
            self._core_too
            and len(self.killed) == 1
            and reply.details["edge"] != self._edge
            and count > self._kill_after
        ):
            self._kill(str(reply.details["core"]))

    def _kill(self, name: str) -> None:
        self.killed.append(name)
        self._mesh.kill(name)


async def kill_one(mesh: Mesh, rng: random.Random, *, http: HttpVersion, core_too: bool) -> Outcome:
    """One stream, undisturbed, then with its edge killed."""
    asked = question(rng)
    edge, other = rng.sample(mesh.plan.edges, 2)
    alone = await ask(edge.url, asked, ca_file=mesh.ca_file)
    watch = Watch(mesh, edge.node, rng.randint(1, TOKENS - 4), core_too=core_too)
    again = await ask(
        edge.url,
        asked,
        others=[other.url],
        http=http,
        ca_file=mesh.ca_file,
        on_text=watch.on_text,
    )
    for name in watch.killed:
        mesh.start_node(name)
    await come_back(mesh)
    one, two = alone.reply, again.reply
    return Outcome(
        same=(one.text, one.token_ids) == (two.text, two.token_ids),
        resumed=again.resumed,
        moved=int(again.summary()["moved"]),
        gap_ms=watch.gap_s * 1e3,
    )


async def measure(mesh: Mesh, streams: int, rng: random.Random) -> dict[str, object]:
    """All streams, one after another."""
    outcomes = []
    for number in range(streams):
        http = VERSIONS[number % len(VERSIONS)]
        outcomes.append(await kill_one(mesh, rng, http=http, core_too=number % 2 == 1))
        print(f"  {number + 1}: h{http} {outcomes[-1]}", flush=True)
    gaps = [outcome.gap_ms for outcome in outcomes]
    return {
        "streams": streams,
        "same": sum(outcome.same for outcome in outcomes),
        "resumed_once": sum(outcome.resumed == 1 for outcome in outcomes),
        "core_killed_too": sum(outcome.moved == 1 for outcome in outcomes),
        "gap_p50_ms": round(percentile(gaps, 50)),
        "gap_p99_ms": round(percentile(gaps, 99)),
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="resume")
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(heading(), flush=True)
    with start_mesh(state_dir(), print) as mesh:
        found = asyncio.run(measure(mesh, given.streams, random.Random(given.seed)))
    print(json.dumps(found))
    return 0 if found["same"] == given.streams else 1


if __name__ == "__main__":
    raise SystemExit(main())
