"""What happens to requests when the index server of their region is killed, frozen or flushed.

    python -m firstlight.infra.bench.index_faults [--requests 200] [--together 1] [--seed 1]

For each fault: so many requests with random prompts at one of two cores that share an index. After
a quarter of them the server is killed, stopped (SIGSTOP) or flushed, after three quarters it is
there again. Every request must succeed. What a fault adds to the time to the first token is the
median of the first requests behind it, and of the later ones, less the median before it. The first
round has no fault: what it "adds" is the noise of the machine, against which to read the others.
"""

import argparse
import asyncio
import json
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from firstlight.infra.bench.direct import DirectLink
from firstlight.infra.bench.machine import heading, percentile
from firstlight.infra.bench.remember import VOCAB, Cores, cores
from firstlight.shared.errors import FirstlightError
from firstlight.shared.redis_client import RedisConfig, connect

TOKENS = 40
"""Of a prompt: enough for a lookup, and short."""
FIRST = 8
"""Requests behind a fault that may be slower, once."""
ADDED_MS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """How a server fails, and how it comes back."""

    name: str
    begin: Callable[[Cores], None]
    end: Callable[[Cores], None]


def _signal(running: Cores, number: int) -> None:
    running.mesh.valkeys["valkey"].process.send_signal(number)


def _kill(running: Cores) -> None:
    child = running.mesh.valkeys["valkey"]
    child.kill()
    child.wait(5.0)


def _flush(running: Cores) -> None:
    async def flush() -> None:
        plan = running.mesh.plan.valkeys[0]
        where = RedisConfig(plan.url, plan.password_file(running.mesh.run))
        client = connect("valkey", where, timeout_s=5.0)
        assert client is not None
        await client.flushall()
        await client.aclose()

    asyncio.run(flush())


FAULTS = (
    Fault("none", lambda running: None, lambda running: None),
    Fault("killed", _kill, lambda running: running.mesh.start_valkeys()),
    Fault(
        "frozen",
        lambda running: _signal(running, signal.SIGSTOP),
        lambda running: _signal(running, signal.SIGCONT),
    ),
    Fault("flushed", _flush, lambda running: None),
)


async def under(
    fault: Fault, running: Cores, count: int, together: int, rng: random.Random
) -> dict[str, Any]:
    """One fault in the middle of `count` requests."""
    times: list[float | None] = [None] * count
    begin_at, end_at = count // 4, 3 * count // 4
    waiting = iter(range(count))

    async def ask_some() -> None:
        for number in waiting:
            if number == begin_at:
                await asyncio.to_thread(fault.begin, running)
            if number == end_at:
                await asyncio.to_thread(fault.end, running)
            times[number] = await _ttft_ms(running.b, rng)

    async with asyncio.TaskGroup() as group:
        for _ in range(together):
            group.create_task(ask_some())
    before = [ms for ms in times[:begin_at] if ms is not None]
    first = [ms for ms in times[begin_at : begin_at + FIRST] if ms is not None]
    later = [ms for ms in times[begin_at + FIRST : end_at] if ms is not None]
    succeeded = sum(ms is not None for ms in times)
    added_first, added_later = median(first) - median(before), median(later) - median(before)
    return {
        "fault": fault.name,
        "requests": count,
        "succeeded": succeeded,
        "ttft_before_ms": round(median(before)),
        "ttft_before_p95_ms": round(percentile(before, 95)),
        "added_first_ms": round(added_first),
        "added_later_ms": round(added_later),
        "ok": succeeded == count and max(added_first, added_later) <= ADDED_MS_MAX,
    }


async def _ttft_ms(link: DirectLink, rng: random.Random) -> float | None:
    prompt = [rng.randrange(VOCAB) for _ in range(TOKENS)]
    try:
        return (await link.ask(prompt, max_tokens=2)).ttft_ms
    except FirstlightError as error:
        print(f"  failed: {error.message}", flush=True)
        return None


async def run(options: argparse.Namespace) -> bool:
    """All faults, one after the other; whether every bar is met."""
    rng, good = random.Random(options.seed), True
    async with cores(0) as running:
        for fault in FAULTS:
            result = await under(fault, running, options.requests, options.together, rng)
            print(json.dumps(result), flush=True)
            good = good and result["ok"]
    return good


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(heading(), flush=True)
    return 0 if asyncio.run(run(options)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
