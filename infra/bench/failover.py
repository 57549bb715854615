"""Kill the serving core in the middle of a stream, many times, and compare what the client got.

    python -m firstlight.infra.bench.failover [--streams 50] [--together 20] [--seed 1]
        [--histories DIR]

Each stream is asked once undisturbed, then again with its core killed (SIGKILL) after a random
number of tokens; ids and text must be the same. Then `--together` streams run at once and one core
is killed under all of them: every one must end with the text that it has alone. The gap is the
longest pause between two pieces of text at the client, the kill in it. With `--histories` all nodes
and the client note what happens, for `firstlight judge DIR`.
"""

import argparse
import asyncio
import json
import random
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from firstlight.infra.bench.machine import heading, percentile
from firstlight.infra.chat import Asked, OnText, Question, ask
from firstlight.infra.judge.run_file import RunRecord
from firstlight.infra.mesh import Mesh, start_mesh
from firstlight.infra.reply import Reply
from firstlight.infra.running import EdgeAddress
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir
from firstlight.shared.history_file import History, history_of

TOKENS = 32
LINKED_S = 0.5
"""An edge is ready with one core; its link to the other comes within this."""
THEMES = ("a lighthouse", "a lost map", "the sea", "an old train", "two rivers", "a small town")


def ignore(text: str, reply: Reply) -> None:
    """Nothing is done with a piece of the stream."""
    del text, reply


@dataclass(frozen=True, slots=True)
class Outcome:
    """One stream with its core killed."""

    same: bool
    moved: int
    gap_ms: float
    killed_at: int


@dataclass(frozen=True, slots=True)
class Bed:
    """The mesh, and where what is done to it is noted, if anywhere."""

    mesh: Mesh
    record: RunRecord | None = None
    history: History | None = None

    def kill(self, core: str) -> None:
        """End a core as a crash would."""
        if self.record is not None:
            self.record.fault("kill", core)
        self.mesh.kill(core)

    async def ask(self, edge: EdgeAddress, asked: Question, on_text: OnText = ignore) -> Asked:
        """Ask one edge."""
        ca_file = self.mesh.ca_file
        return await ask(edge.url, asked, ca_file=ca_file, on_text=on_text, history=self.history)


class Watch:
    """Sees a stream arrive: kills its core after `kill_after` ids, and keeps the longest pause."""

    def __init__(self, bed: Bed, kill_after: int) -> None:
        self.killed: str | None = None
        self.killed_at = 0
        self.gap_s = 0.0
        self._bed = bed
        self._kill_after = kill_after
        self._last_s: float | None = None

    def on_text(self, text: str, reply: Reply) -> None:
        """A piece of the stream is here."""
        del text
        now = monotonic_s()
        if self._last_s is not None:
            self.gap_s = max(self.gap_s, now - self._last_s)
        self._last_s = now
        if self.killed is None and len(reply.token_ids) >= self._kill_after:
            self.killed, self.killed_at = str(reply.details["core"]), len(reply.token_ids)
            self._bed.kill(self.killed)


def question(rng: random.Random) -> Question:
    """A seeded question with a fixed number of tokens to answer."""
    return Question(
        f"Tell me a story about {rng.choice(THEMES)}, number {rng.randrange(1000)}.",
        seed=rng.randrange(1 << 31),
        temperature=rng.choice((0.0, 0.7, 1.0)),
        max_tokens=TOKENS,
        ignore_eos=True,
    )


async def come_back(mesh: Mesh) -> None:
    """Wait until every core that was started again serves, and the edges are linked to it."""
    await asyncio.to_thread(mesh.wait_ready, list(mesh.children))
    await asyncio.to_thread(mesh.wait_linked)
    await asyncio.sleep(LINKED_S)


async def kill_one(bed: Bed, rng: random.Random) -> Outcome:
    """One stream, undisturbed (the core killed last comes back meanwhile), then with a kill."""
    mesh = bed.mesh
    asked, edge = question(rng), rng.choice(mesh.plan.edges)
    alone = await bed.ask(edge, asked)
    await come_back(mesh)
    watch = Watch(bed, kill_after=rng.randint(1, TOKENS - 2))
    again = await bed.ask(edge, asked, watch.on_text)
    if watch.killed is not None:
        mesh.start_node(watch.killed)
    one, other = alone.reply, again.reply
    return Outcome(
        same=(one.text, one.token_ids) == (other.text, other.token_ids),
        moved=int(again.summary()["moved"]),
        gap_ms=watch.gap_s * 1e3,
        killed_at=watch.killed_at,
    )


async def kill_under_many(bed: Bed, rng: random.Random, streams: int) -> dict[str, int]:
    """Many streams on one core, which is killed under them. Counts of what became of them."""
    asked = [question(rng) for _ in range(streams)]
    edge = bed.mesh.plan.edges[0]
    alone = [await bed.ask(edge, item) for item in asked]
    await come_back(bed.mesh)
    watch = Watch(bed, kill_after=TOKENS // 3)
    first = bed.ask(edge, asked[0], watch.on_text)
    rest = (bed.ask(edge, item) for item in asked[1:])
    together = await asyncio.gather(first, *rest, return_exceptions=True)
    ended = [item for item in together if not isinstance(item, BaseException)]
    pairs = [
        (a.reply, b.reply)
        for a, b in zip(alone, together, strict=True)
        if not isinstance(b, BaseException)
    ]
    for item in together:
        if isinstance(item, BaseException):
            print(f"  a stream ended with: {item}")
    return {
        "streams": streams,
        "failed": streams - len(ended),
        "moved": sum(int(item.summary()["moved"]) > 0 for item in ended),
        "different": sum((a.text, a.token_ids) != (b.text, b.token_ids) for a, b in pairs),
    }


async def measure(bed: Bed, streams: int, together: int, seed: int) -> bool:
    """Run it all, print the figures; whether every text was the same."""
    rng = random.Random(seed)
    outcomes = []
    for number in range(1, streams + 1):
        outcomes.append(outcome := await kill_one(bed, rng))
        print(
            f"  {number:3}: killed after {outcome.killed_at:2} ids, moved {outcome.moved}×, "
            f"gap {outcome.gap_ms:5.0f} ms, {'same' if outcome.same else 'DIFFERENT'}",
            flush=True,
        )
    many = await kill_under_many(bed, rng, together) if together else {}
    gaps = [outcome.gap_ms for outcome in outcomes]
    figures = {
        "streams": streams,
        "same": sum(outcome.same for outcome in outcomes),
        "moved_once": sum(outcome.moved == 1 for outcome in outcomes),
        "gap_p50_ms": round(percentile(gaps, 50)),
        "gap_p99_ms": round(percentile(gaps, 99)),
        "together": many,
        "seed": seed,
    }
    print(json.dumps(figures))
    whole = many.get("failed", 0) == 0 and many.get("different", 0) == 0
    return figures["same"] == figures["moved_once"] == streams and whole


def main() -> int:
    """The command; exit code 1 if any text was not the same."""
    parser = argparse.ArgumentParser(description=__doc__, prog="failover")
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--together", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--histories", type=Path, metavar="DIR")
    given = parser.parse_args()
    print(heading(), flush=True)
    record = None if given.histories is None else begin(given.histories, given.seed)
    with (
        history_of(given.histories, "client", "client") as history,
        start_mesh(state_dir(), print, given.histories) as mesh,
    ):
        bed = Bed(mesh, record, history)
        good = asyncio.run(measure(bed, given.streams, given.together, given.seed))
    if record is not None:
        record.end()
    return 0 if good else 1


def begin(histories: Path, seed: int) -> RunRecord:
    """The record of this run, beside its histories."""
    return RunRecord.begin(histories, seed=seed, command=shlex.join(["python", *sys.argv]))


if __name__ == "__main__":
    raise SystemExit(main())
