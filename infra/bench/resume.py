"""Kill the edge under streams, many times, and compare what the clients put together.

    python -m firstlight.infra.bench.resume [--streams 100] [--together 10] [--seed 1]

Each stream is asked once undisturbed. Then so many at a time are asked again, and their edge is
killed (SIGKILL) when one of them has a random number of tokens, the others wherever they are; every
second time the core that serves the rest of that one is killed in its turn. The clients go on at
the other edge by themselves; ids and text must be the same. The gap is the longest pause between
two pieces of text at a client, the kill in it.
"""

import argparse
import asyncio
import json
import random
from dataclasses import dataclass

from firstlight.infra.bench.failover import TOKENS, come_back, question
from firstlight.infra.bench.machine import heading, percentile
from firstlight.infra.chat import Asked, ask
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


class Round:
    """Streams at one edge: kills it, then perhaps the core of the rest."""

    def __init__(self, mesh: Mesh, edge: str, kill_after: int, *, core_too: bool) -> None:
        self.killed: list[str] = []
        self._mesh, self._edge = mesh, edge
        self._kill_after, self._core_too = kill_after, core_too

    def watch(self, reply: Reply) -> None:
        """See the one stream that says when."""
        count = len(reply.token_ids)
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


class Gap:
    """The longest pause of one stream."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last_s: float | None = None

    def text(self) -> None:
        """A piece of text is here."""
        now = monotonic_s()
        if self._last_s is not None:
            self.longest_s = max(self.longest_s, now - self._last_s)
        self._last_s = now


async def kill_round(
    mesh: Mesh, rng: random.Random, together: int, *, core_too: bool
) -> list[Outcome]:
    """Some streams, undisturbed, then with their edge killed."""
    questions = [question(rng) for _ in range(together)]
    edge, other = rng.sample(mesh.plan.edges, 2)
    alone = await asyncio.gather(*(ask(edge.url, q, ca_file=mesh.ca_file) for q in questions))
    one = Round(mesh, edge.node, rng.randint(1, TOKENS - 4), core_too=core_too)

    async def disturbed(number: int) -> tuple[Asked, Gap]:
        gap = Gap()

        def on_text(text: str, reply: Reply) -> None:
            if text:
                gap.text()
            if number == 0:
                one.watch(reply)

        told = await ask(
            edge.url,
            questions[number],
            others=[other.url],
            http=VERSIONS[number % len(VERSIONS)],
            ca_file=mesh.ca_file,
            on_text=on_text,
        )
        return told, gap

    again = await asyncio.gather(*map(disturbed, range(together)))
    for name in one.killed:
        mesh.start_node(name)
    await come_back(mesh)
    return [
        Outcome(
            same=(first.reply.text, first.reply.token_ids)
            == (second.reply.text, second.reply.token_ids),
            resumed=second.resumed,
            moved=int(second.summary()["moved"]),
            gap_ms=gap.longest_s * 1e3,
        )
        for first, (second, gap) in zip(alone, again, strict=True)
    ]


async def measure(mesh: Mesh, streams: int, together: int, rng: random.Random) -> dict[str, object]:
    """All streams, so many at a time."""
    outcomes: list[Outcome] = []
    while len(outcomes) < streams:
        core_too = len(outcomes) // together % 2 == 1
        count = min(together, streams - len(outcomes))
        outcomes += await kill_round(mesh, rng, count, core_too=core_too)
        same = sum(outcome.same for outcome in outcomes)
        print(f"  {len(outcomes)} streams, {same} the same; core too: {core_too}", flush=True)
    gaps = [outcome.gap_ms for outcome in outcomes if outcome.resumed]
    return {
        "streams": streams,
        "same": sum(outcome.same for outcome in outcomes),
        "resumed": sum(outcome.resumed >= 1 for outcome in outcomes),
        "moved_too": sum(outcome.moved >= 1 for outcome in outcomes),
        "gap_p50_ms": round(percentile(gaps, 50)),
        "gap_p99_ms": round(percentile(gaps, 99)),
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="resume")
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--together", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(heading(), flush=True)
    with start_mesh(state_dir(), print) as mesh:
        found = asyncio.run(measure(mesh, given.streams, given.together, random.Random(given.seed)))
    print(json.dumps(found))
    return 0 if found["same"] == given.streams else 1


if __name__ == "__main__":
    raise SystemExit(main())
