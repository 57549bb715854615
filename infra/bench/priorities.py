"""What priorities give those who wait for a word, and what they cost: in simulated time.

    python -m firstlight.infra.bench.priorities [--requests 256] [--share 0.25] [--prompt 128]
        [--answer 32] [--sequences 64] [--fixed-ms 8] [--row-ms 0.45] [--later-s 0]
        [--seeds 9]

All requests wait at once, in random order; a part of them is interactive, the rest batch. The real
engine serves them over a runner that takes fixed + row · rows ms a step, once with these classes
and once first come, first served (all of one class). Prompts are of one length and share nothing.
Bars, for the median of the seeds: interactive P99 TTFT at most a quarter, throughput at most 12 %
less. Nothing here reads a clock: the figures are the same on every machine.

A quarter of the work is interactive, so about a quarter is also what the order alone can give; what
is below it comes from batch decodes that rest while interactive prompts have not begun (decision
0024). With few places (`--sequences`) the last interactive ones wait for the answers of the first.
With `--later-s` the interactive ones come so much later, all at once, when batch requests have all
places, and push them aside.
"""

import argparse
import json
import random
from dataclasses import dataclass, replace
from math import inf
from statistics import median

from firstlight.infra.bench.machine import heading, percentile
from firstlight.shared.blocks import blocks_for
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.plan import EngineConfig
from firstlight.shared.engine.steptable import StepTable
from firstlight.shared.engine.timed import TimedRunner
from firstlight.shared.types import Priority, Request, Sampling

RATIO_MAX, LOSS_MAX = 0.25, 0.12
VOCAB = 49152


@dataclass(frozen=True)
class Run:
    """One order of service, as its clients saw it."""

    ttft_ms: list[float]
    """Of the interactive requests."""
    tokens_per_s: float
    preemptions: int
    offloads: int


def crowd(options: argparse.Namespace, seed: int) -> list[Request]:
    """Requests in the order of their arrival."""
    rng = random.Random(seed)
    interactive = round(options.requests * options.share)
    classes = [Priority.INTERACTIVE] * interactive
    classes += [Priority.BATCH] * (options.requests - interactive)
    rng.shuffle(classes)
    return [
        Request(
            id=f"{priority.name.lower()}-{number}",
            model="timed",
            tokenizer_hash="timed",
            salt=b"",
            prompt=tuple(rng.randrange(VOCAB) for _ in range(options.prompt)),
            sampling=Sampling(temperature=0.0),
            seed=0,
            choice=0,
            max_tokens=options.answer,
            eos_ids=frozenset(),
            priority=priority,
        )
        for number, priority in enumerate(classes)
    ]


def serve(requests: list[Request], options: argparse.Namespace, *, priorities: bool) -> Run:
    """Serve all of them, from the moment that they all wait."""
    each = blocks_for(options.prompt + options.answer)
    config = EngineConfig(
        blocks=(options.sequences + 4) * each,
        sequences_max=options.sequences,
        waiting_max=options.requests,
        hint_ids_max=0,
        speculation="off",
        copy_bytes_per_s=inf,  # as of the table: copies take none of the simulated time
    )
    table = StepTable.linear(options.fixed_ms, options.row_ms)
    runner = TimedRunner(table, blocks=config.blocks, host_blocks=config.host_blocks, vocab=VOCAB)
    engine = Engine(runner, config)
    served = {one.id: one.priority for one in requests}
    now, ttft_ms, tokens = 0.0, dict[str, float](), 0
    late_s = {one.id: options.later_s * (one.priority is Priority.INTERACTIVE) for one in requests}
    coming = sorted(requests, key=lambda one: late_s[one.id])
    while coming or engine.has_work:
        while coming and (late_s[coming[0].id] <= now or not engine.has_work):
            one = coming.pop(0)
            now = max(now, late_s[one.id])
            asked = one if priorities else replace(one, priority=Priority.INTERACTIVE)
            engine.add(asked, epoch=1, credit=options.prompt + 10**6, now=late_s[one.id])
        result = engine.step(now)
        now += result.ms / 1000
        assert not result.failures, result.failures
        for outcome in result.outcomes:
            tokens += len(outcome.ids)
            ttft_ms.setdefault(outcome.request, (now - late_s[outcome.request]) * 1000)
    assert tokens == len(requests) * options.answer, tokens
    waited = [ms for name, ms in ttft_ms.items() if served[name] is Priority.INTERACTIVE]
    return Run(waited, tokens / now, engine.counts.preemptions, engine.counts.offloads)


def compare(options: argparse.Namespace, seed: int) -> tuple[float, float]:
    """Print both orders of one crowd; returns the ratio of P99 TTFT, and the share lost."""
    requests = crowd(options, seed)
    runs = {
        "priorities": serve(requests, options, priorities=True),
        "first_come": serve(requests, options, priorities=False),
    }
    ratio = percentile(runs["priorities"].ttft_ms, 99) / percentile(runs["first_come"].ttft_ms, 99)
    loss = 1 - runs["priorities"].tokens_per_s / runs["first_come"].tokens_per_s
    figures = {
        name: {
            "ttft_p50_ms": round(percentile(run.ttft_ms, 50)),
            "ttft_p99_ms": round(percentile(run.ttft_ms, 99)),
            "tokens_per_s": round(run.tokens_per_s, 1),
            "preemptions": run.preemptions,
            "offloads": run.offloads,
        }
        for name, run in runs.items()
    }
    rounded = {"p99_ratio": round(ratio, 4), "throughput_loss": round(loss, 4)}
    print(json.dumps({"seed": seed, **figures, **rounded}), flush=True)
    return ratio, loss


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--answer", type=int, default=32)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--fixed-ms", type=float, default=8.0)
    parser.add_argument("--row-ms", type=float, default=0.45)
    parser.add_argument("--later-s", type=float, default=0.0)
    parser.add_argument("--seeds", type=int, default=9)
    options = parser.parse_args()
    print(heading(), flush=True)
    found = [compare(options, seed) for seed in range(options.seeds)]
    ratio, loss = (median(values) for values in zip(*found, strict=True))
    good = ratio <= RATIO_MAX and loss <= LOSS_MAX
    worst = max(one for one, _ in found)
    print(
        json.dumps(
            {
                "p99_ratio": round(ratio, 4),
                "p99_ratio_worst": round(worst, 4),
                "throughput_loss": round(loss, 4),
                "ok": good,
            }
        )
    )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
