"""One open-loop run: each request is sent at its time, whatever became of those before it.

Bodies are made ahead while there is time, so that making them does not delay a send. What the
client itself costs is sampled each second: a client that computes all the time measures itself.
"""

import asyncio
import resource
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from firstlight.infra.bench.load.prompts import TracePrompts
from firstlight.infra.bench.load.records import Reason, Record
from firstlight.infra.bench.load.schedule import Arrival
from firstlight.infra.bench.load.target import Target
from firstlight.shared.clock import monotonic_s

AHEAD_MAX = 256
"""Bodies made before their time."""
AHEAD_BYTES_MAX = 64 << 20
LEAD_S = 0.2
"""Between the last preparation and the first send."""
MAKE_S = 0.01
"""A body is made ahead only if no request is due within this."""
SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is put on a server."""

    arrivals: Sequence[Arrival]
    prompts: TracePrompts
    cold: Sequence[bool]
    """Of each arrival, whether it opens a connection of its own."""
    timeout_s: float
    outstanding_max: int


@dataclass(slots=True)
class Run:
    """What came of it, so far."""

    records: list[Record] = field(default_factory=list)
    """Of all that were due."""
    begun_s: float = 0.0
    """The first moment of the schedule."""
    ended_s: float = 0.0
    cpu_shares: list[float] = field(default_factory=list)
    """Of one core, in each second."""
    cpu_s: float = 0.0
    outstanding: int = 0
    outstanding_most: int = 0
    planned: int = 0
    shareable_tokens: int = 0
    """Of its prompts, what a cache could have from this run itself."""
    cut_short: str | None = None
    """What ended it before its time."""


Watch = Callable[[Run], None]


def cold_ones(kind: str, count: int, random: Random) -> list[bool]:
    """Which requests open a connection of their own; of `both`, half of them, by chance."""
    if kind == "both":
        return [random.random() < 0.5 for _ in range(count)]
    return [kind == "cold"] * count


class Stop:
    """Asks runs to end; says why."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self.why: str | None = None

    def ask(self, why: str) -> None:
        """End what runs, and begin nothing."""
        self.why = self.why or why
        self._asked.set()

    async def wait(self, seconds: float | None) -> bool:
        """Whether it was asked for within so long (None: however long that takes)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._asked.wait()
        return self.why is not None


async def run_load(target: Target, load: Load, stop: Stop, watch: Watch) -> Run:
    """Send all of it and wait for what is out; `watch` sees it each second.

    When `stop` asks, what is out is cancelled and stands in the records without an end.
    """
    run = Run(planned=len(load.arrivals), shareable_tokens=load.prompts.shareable_tokens)
    sender = _Sender(target, load, run)
    sender.make_ahead()
    run.begun_s = monotonic_s() + LEAD_S
    cpu_before_s = _cpu_s()
    sampling = asyncio.create_task(_sample(run, watch))
    try:
        await sender.send_all(stop)
        await sender.wait_for_rest(stop)
        run.cut_short = stop.why
    finally:
        await sender.cancel()
        sampling.cancel()
        run.ended_s, run.cpu_s = monotonic_s(), _cpu_s() - cpu_before_s
    watch(run)
    return run


class _Sender:
    def __init__(self, target: Target, load: Load, run: Run) -> None:
        self._target, self._load, self._run = target, load, run
        self._ahead: deque[bytes] = deque()
        self._ahead_bytes, self._made = 0, 0
        self._tasks: set[asyncio.Task[None]] = set()

    def make_ahead(self) -> None:
        """As many bodies as are kept."""
        while self._make_one():
            pass

    async def send_all(self, stop: Stop) -> None:
        """Each at its time, until all are sent or `stop` asks."""
        for index, arrival in enumerate(self._load.arrivals):
            due_s = self._run.begun_s + arrival.at_s
            await self._use_time_until(due_s)
            # Late or not, others get their turn: a sender that catches up must not starve them.
            if await stop.wait(max(0.0, due_s - monotonic_s())):
                return
            self._send(index, arrival, due_s)

    async def _use_time_until(self, due_s: float) -> None:
        """Make bodies ahead, one between two turns of others."""
        while due_s - monotonic_s() > MAKE_S:
            if not self._make_one():
                return
            await asyncio.sleep(0)

    async def wait_for_rest(self, stop: Stop) -> None:
        """Until nothing is out, or `stop` asks. Each has its timeout, so this ends."""
        asked = asyncio.create_task(stop.wait(None))
        try:
            while self._tasks and not asked.done():
                await asyncio.wait({*self._tasks, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()

    async def cancel(self) -> None:
        """End what is still out."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send(self, index: int, arrival: Arrival, due_s: float) -> None:
        run, cold = self._run, self._load.cold[index]
        if not self._ahead:
            self._make_one()
        body = self._ahead.popleft()
        self._ahead_bytes -= len(body)
        record = Record(index, due_s, arrival.tokens_in, cold)
        run.records.append(record)
        if len(self._tasks) >= self._load.outstanding_max:
            record.missed(Reason.NOT_SENT, f"{len(self._tasks)} were out already", monotonic_s())
            return
        self._begin(self._target.ask(record, body, self._load.timeout_s))

    def _begin(self, asking: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(asking)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._count)
        self._run.outstanding = len(self._tasks)
        self._run.outstanding_most = max(self._run.outstanding_most, len(self._tasks))

    def _count(self, _: object) -> None:
        self._run.outstanding = len(self._tasks)

    def _make_one(self) -> bool:
        """One body more, if there is room and one is left."""
        full = len(self._ahead) >= AHEAD_MAX or self._ahead_bytes >= AHEAD_BYTES_MAX
        if self._made >= len(self._load.arrivals) or (full and self._ahead):
            return False
        text = self._load.prompts.text(self._made)
        body = self._target.body(text, self._load.arrivals[self._made].tokens_out)
        self._ahead.append(body)
        self._ahead_bytes += len(body)
        self._made += 1
        return True


async def _sample(run: Run, watch: Watch) -> None:
    """CPU of each second, and whoever watches."""
    before_s, cpu_before_s = monotonic_s(), _cpu_s()
    while True:
        await asyncio.sleep(SAMPLE_S)
        now_s, cpu_now_s = monotonic_s(), _cpu_s()
        run.cpu_shares.append((cpu_now_s - cpu_before_s) / (now_s - before_s))
        before_s, cpu_before_s = now_s, cpu_now_s
        watch(run)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
