"""An engine on the real model under cancels, preemptions and hints for a long time.

    python -m firstlight.infra.bench.soak [--minutes 30] [--threads 1] [--seed 1]

A pool that is far too small for what is asked, so that sequences lose their blocks all the time, to
the host tier and to be computed again. Requests of all priorities come and go, a fifth is cancelled
at some step, hints are right, wrong, or none. At every step the blocks of both tiers add up. Every
tenth answer that ends is asked again afterwards, alone on a fresh engine, and must have the same
ids. In the end nothing is held but what is cached, and memory is what it was once warm.
"""

import argparse
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from firstlight.infra.bench.machine import heading
from firstlight.shared.clock import monotonic_s
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.model.load import load_model
from firstlight.shared.engine.plan import EngineConfig
from firstlight.shared.engine.runner import TorchRunner, measured_copies
from firstlight.shared.model_files import default_model_path
from firstlight.shared.types import Priority, Request, Sampling

BLOCKS, HOST_BLOCKS = 48, 24
AT_ONCE = 24
CHECK_EVERY = 10
CANCELLED_SHARE = 0.2
WARM_SHARE = 0.2
"""Memory is compared with what it was after this share of the time."""
GROWTH_MAX_MB = 24.0
PREFIXES = 6


@dataclass(slots=True)
class Tally:
    """What happened."""

    ended: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0
    tokens: int = 0
    rss_mb: list[float] = field(default_factory=list)
    """About one a minute."""
    checks: list[tuple[Request, tuple[int, ...]]] = field(default_factory=list)


class Soak:
    """One engine, and requests that come at random."""

    def __init__(self, runner: TorchRunner, seed: int) -> None:
        self._random = random.Random(seed)
        speed = measured_copies(runner, HOST_BLOCKS)
        self._engine = Engine(runner, config(speculation="always", copy_bytes_per_s=speed))
        self._vocab = runner.vocab
        self._open: dict[str, tuple[Request, list[int]]] = {}
        self._asked = 0
        self._prefixes = [
            [self._random.randrange(17, self._vocab) for _ in range(self._random.randrange(16, 90))]
            for _ in range(PREFIXES)
        ]
        self.tally = Tally()

    def run(self, seconds: float) -> None:
        """Ask and step until the time is over, then until all is answered."""
        began_s = monotonic_s()
        while (now := monotonic_s()) - began_s < seconds or self._open:
            while len(self._open) < AT_ONCE and now - began_s < seconds:
                self._ask(now)
            self._disturb()
            self._step(now)
            if now - began_s > 60 * len(self.tally.rss_mb):
                self.tally.rss_mb.append(rss_mb())
        self.tally.rss_mb.append(rss_mb())

    def settled(self) -> dict[str, object]:
        """Counts once nobody is left."""
        counts, blocks, host = self._engine.counts, self._engine.blocks, self._engine.host_blocks
        return {
            "preemptions": counts.preemptions,
            "offloads": counts.offloads,
            "used": blocks.used,
            "host_used": host.used,
            "adds_up": blocks.free + blocks.used + blocks.cached == blocks.total,
        }

    def _ask(self, now: float) -> None:
        draw, self._asked = self._random, self._asked + 1
        own = [draw.randrange(17, self._vocab) for _ in range(draw.randrange(1, 120))]
        request = Request(
            id=str(self._asked),
            model="soak",
            tokenizer_hash="soak",
            salt=bytes(16),
            prompt=tuple(draw.choice(self._prefixes) + own),
            sampling=Sampling(
                temperature=draw.choice((0.0, 0.7, 1.0)), top_p=draw.choice((1.0, 0.9))
            ),
            seed=draw.getrandbits(63),
            choice=0,
            max_tokens=draw.randrange(4, 200),
            eos_ids=frozenset(),
            priority=draw.choice(list(Priority)),
        )
        self._engine.add(request, epoch=1, credit=1 << 20, now=now)
        self._open[request.id] = (request, [])

    def _disturb(self) -> None:
        draw = self._random
        if draw.random() < CANCELLED_SHARE / 10 and self._open:
            gone = draw.choice(list(self._open))
            self._engine.cancel(gone)
            del self._open[gone]
            self.tally.cancelled += 1
        for name, start in self._engine.next_positions().items():
            if draw.random() < 0.1:
                ids = tuple(draw.randrange(self._vocab) for _ in range(draw.randrange(1, 4)))
                self._engine.candidate(name, start, ids, ("soak",) * len(ids))

    def _step(self, now: float) -> None:
        result, tally = self._engine.step(now), self.tally
        tally.steps += bool(result.rows)
        for name, _, error in result.failures:
            print(f"  request {name} failed: {error}")
            tally.failed += 1
            self._open.pop(name, None)
        for outcome in result.outcomes:
            request, ids = self._open[outcome.request]
            ids += outcome.ids
            tally.tokens += len(outcome.ids)
            if outcome.finish:
                del self._open[outcome.request]
                tally.ended += 1
                if tally.ended % CHECK_EVERY == 0:
                    tally.checks.append((request, tuple(ids)))


def config(**changes: object) -> EngineConfig:
    """Too few blocks for `AT_ONCE` sequences, and everything else as usual."""
    limits = {"blocks": BLOCKS, "host_blocks": HOST_BLOCKS, "waiting_max": AT_ONCE, **changes}
    return EngineConfig(**limits)  # type: ignore[arg-type]


def undisturbed(runner: TorchRunner, request: Request) -> tuple[int, ...]:
    """The same request, alone on a fresh engine."""
    engine = Engine(runner, config(speculation="off"))
    ids: list[int] = []
    engine.add(request, epoch=1, credit=1 << 20, now=monotonic_s())
    while engine.has_work:
        for outcome in engine.step(monotonic_s()).outcomes:
            ids += outcome.ids
    return tuple(ids)


def rss_mb() -> float:
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> int:
    """The command; 0 only if nothing leaked, failed or differed."""
    parser = argparse.ArgumentParser(description=__doc__, prog="soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(heading(), flush=True)
    model = load_model(default_model_path(), threads=given.threads)
    runner = TorchRunner(model, model.storage(BLOCKS, HOST_BLOCKS))
    soak = Soak(runner, given.seed)
    soak.run(60 * given.minutes)
    tally, settled = soak.tally, soak.settled()
    differing = [one.id for one, ids in tally.checks if undisturbed(runner, one) != ids]
    warm = tally.rss_mb[int(WARM_SHARE * len(tally.rss_mb))]
    found = {
        "ended": tally.ended,
        "cancelled": tally.cancelled,
        "failed": tally.failed,
        "steps": tally.steps,
        "tokens": tally.tokens,
        **settled,
        "checked": len(tally.checks),
        "differing": differing,
        "rss_mb": [round(mb) for mb in tally.rss_mb],
        "growth_mb": round(tally.rss_mb[-1] - warm, 1),
    }
    found["ok"] = (
        not (differing or tally.failed or settled["used"] or settled["host_used"])
        and bool(settled["adds_up"] and settled["preemptions"] and tally.checks)
        and tally.rss_mb[-1] - warm < GROWTH_MAX_MB
    )
    print(json.dumps(found))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
