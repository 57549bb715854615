"""A core in simulated time: the scheduler and the KV manager of an engine, over a table of times.

What an engine does between plan and commit is done here for sequences of which only the lengths
matter; a test holds this to the real engine over the timed runner, step by step. Steps that differ
in nothing but the time that they take (everybody decodes, nobody finishes, needs a block, or may
change places) are run as one stretch: what comes in the middle cuts it at the end of the step that
runs then. Times are added in the order of the steps, so a stretch ends at the same bit as its steps
would one by one; a test holds it to that too. Sans-IO: whoever owns a core tells it the time.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence as Many
from dataclasses import dataclass
from hashlib import blake2b
from math import inf

from firstlight.shared.blocks import HASH_BYTES
from firstlight.shared.drafting.prefilltimes import pairs
from firstlight.shared.drafting.steptimes import StepTimes
from firstlight.shared.engine.kv.manager import KvManager
from firstlight.shared.engine.plan import EngineConfig
from firstlight.shared.engine.scheduler import Scheduler, Work
from firstlight.shared.engine.sequence import Counted, Sequence
from firstlight.shared.engine.steptable import StepTable
from firstlight.shared.routing.sketch import HotPrefixes
from firstlight.shared.types import Load, Request, Sampling

STRETCH_STEPS_MAX = 4096
LOADS_MAX = 4096
"""How many of its past loads a core remembers, for those who heard of it a while ago."""
_GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class CoreSpec:
    """What a core is, in tokens and not in blocks."""

    table: StepTable
    pool_tokens: int
    """KV that its memory holds."""
    host_tokens: int = 0
    """KV that the host tier holds."""
    block_tokens: int = 512
    """Of a block here. A trace knows its prompts in blocks of 512, so finer ones find nothing."""
    sequences_max: int = 64
    waiting_max: int = 64
    prefill_chunk: int = 8192

    def engine_config(self) -> EngineConfig:
        """The limits of its engine."""
        blocks = self.pool_tokens // self.block_tokens
        return EngineConfig(
            blocks=blocks,
            host_blocks=self.host_tokens // self.block_tokens,
            context_max=blocks * self.block_tokens,
            sequences_max=self.sequences_max,
            waiting_max=self.waiting_max,
            step_tokens_max=self.prefill_chunk + self.sequences_max,
            prefill_chunk=self.prefill_chunk,
            hint_ids_max=0,
            speculation="off",
        )


@dataclass(frozen=True, slots=True)
class First:
    """A request's first token was made."""

    request: str
    at_s: float
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A request's last token was made, or its time was over."""

    request: str
    at_s: float
    error: str = ""


Told = First | Ended


class Core:
    """Requests in, times of tokens out. Ask `due_s` when to call `run` next."""

    def __init__(self, spec: CoreSpec, *, stretches: bool = True) -> None:
        """`stretches`: whether steps that are alike are run as one."""
        self.spec, self._stretches = spec, stretches
        self._config = spec.engine_config()
        self._factor = 1.0
        self.prefill_tokens = 0
        """Computed so far."""
        self.steps = 0
        self._busy_s, self._busy_since_s = 0.0, inf
        """Time spent in steps until it last stood still, and since when it has not."""
        self._restart()
        self._said = self._say()
        self._loads: list[Load] = [self._load()]
        self._load_times_s: list[float] = [-inf]

    def _restart(self) -> None:
        spec, config = self.spec, self._config
        self._hot = HotPrefixes(spec.block_tokens)
        self._kv = KvManager(config.blocks, config.host_blocks, block_tokens=spec.block_tokens)
        self._copy_ms = spec.table.block_copy_ms * spec.block_tokens / 16
        self._scheduler = Scheduler(config, self._kv, block_copy_ms=self._copy_ms or inf)
        self._times = StepTimes()
        self._inbox: list[tuple[Request, Counted]] = []
        self._works: list[Work] = []
        self._ran = 0, 0, 0
        """Sampled rows, prefill tokens, and tokens that these look at, of the step that runs."""
        self._ends_s: list[float] = []
        """When each step of the stretch ends; empty while nothing runs."""
        self._took_ms: list[float] = []
        self._told: list[Told] = []
        self._counted: list[str] = []

    @property
    def due_s(self) -> float | None:
        """When the stretch ends that runs now; None: it stands still."""
        return self._ends_s[-1] if self._ends_s else None

    @property
    def in_flight(self) -> int:
        """Requests that were accepted and have not ended."""
        return self._scheduler.running + self._scheduler.queued + len(self._inbox)

    @property
    def full(self) -> bool:
        """At the hard cap: the next request is refused."""
        return self.in_flight >= self._config.sequences_max + self._config.waiting_max

    def open(self, request: str, asked: Counted, max_tokens: int, now: float) -> str:
        """Take a request; returns why it is refused, or nothing."""
        if self.full:
            return "full"
        if asked.prompt_tokens + max_tokens > self._config.context_max:
            return "too long"
        self._inbox.append((_request(request, max_tokens), asked))
        if self._ends_s:
            self._cut(now)
        else:
            self._begin(now)
        return ""

    def run(self, now: float) -> list[Told]:
        """The stretch that is due is over: what came of it. The next one begins."""
        assert self._ends_s, now
        assert now == self._ends_s[-1], (now, self._ends_s[-1])
        self._finish()
        self._begin(now)
        told, self._told = self._told, []
        return told

    def take_counted(self) -> list[str]:
        """Requests that its load counts now, since the last call."""
        counted, self._counted = self._counted, []
        return counted

    def slow(self, factor: float, now: float) -> None:
        """From the next step on steps take `factor` times as long."""
        self._factor = factor
        if self._ends_s:
            self._cut(now)

    def kill(self, now: float) -> dict[str, int]:
        """All is lost; returns how many tokens each request had been given."""
        done = bisect_right(self._ends_s, now)
        del self._ends_s[done:], self._took_ms[done:]
        if done:
            self._finish()
        given = {one.id: one.generated for one in self._scheduler.all()}
        given |= {request.id: 0 for request, _ in self._inbox}
        self._rest(now)
        self._restart()
        self._remember(now)
        return given

    def busy_by(self, now: float) -> float:
        """Seconds in which steps ran, up to now."""
        return self._busy_s + max(0.0, now - self._busy_since_s)

    def _rest(self, now: float) -> None:
        self._busy_s, self._busy_since_s = self.busy_by(now), inf

    def resident_tokens(self, hashes: Many[bytes], prompt_tokens: int) -> int:
        """Leading prompt tokens that are here, in either tier."""
        return self._kv.leading(hashes, prompt_tokens) * self.spec.block_tokens

    @property
    def sketch(self) -> bytes:
        """Which prefixes are here, roughly."""
        return self._hot.sketch

    def land(self, hashes: Many[bytes]) -> None:
        """KV of a prefix came from elsewhere; what has room is cached, the beginning first."""
        size, table = self.spec.block_tokens, list[int]()
        here = self._kv.attach(table, hashes, len(hashes) * size + 1) // size
        for index in range(here, len(hashes)):
            if not self._kv.grow(table, (index + 1) * size):
                break
            self._kv.publish(table, index, hashes[index])
        self._kv.release(table)
        self._hot.touch(hashes)

    def load_at(self, at_s: float) -> Load:
        """What it would have said of itself at that time."""
        return self._loads[max(0, bisect_right(self._load_times_s, at_s) - 1)]

    def _begin(self, now: float) -> None:
        """Take what came in, plan, and say when that ends."""
        for request, asked in self._inbox:
            sequence = Sequence(
                request, epoch=1, committed=(), credit=1 << 62, now=now, counted=asked
            )
            self._scheduler.add(sequence, now)
            self._counted.append(request.id)
        self._inbox.clear()
        for sequence, error in self._scheduler.expire(now):
            self._told.append(Ended(sequence.id, now, error.kind))
        self._works = self._scheduler.plan(now, self._times)
        self._scheduler.turns()
        self._remember(now)
        moves = self._kv.take_moves()
        copied = len(moves.saves) + len(moves.fills)
        self._ends_s, self._took_ms = [], []
        if not self._works:
            self._rest(now)
            return
        self._busy_since_s = min(self._busy_since_s, now)
        sampled = prefill = looked_at = context = 0
        fresh = False
        for work in self._works:
            sequence, before = work.sequence, work.count
            reached = sequence.computed + before
            if reached == sequence.known:
                before -= 1
                sampled += 1
                context += reached
                fresh = fresh or not sequence.reported
            if before:
                prefill += before
                looked_at += pairs(before, sequence.computed)
        self._ran = sampled, prefill, looked_at
        table = self.spec.table
        if prefill or fresh or copied or not self._stretches:
            ms = table.work_ms(sampled, prefill, looked_at, context) + copied * self._copy_ms
            self._took_ms.append(ms * self._factor)
            self._ends_s.append(now + ms * self._factor / 1000)
        else:
            self._stretch(now, sampled, context)

    def _stretch(self, now: float, rows: int, context: int) -> None:
        """As many steps as are sure to be like the first one."""
        steps, until_s = self._alike(now)
        table, factor, end_s = self.spec.table, self._factor, now
        ends_s, took_ms = self._ends_s, self._took_ms
        rows_ms, context_ms = table.work_ms(rows, 0, 0, 0), table.context_ms
        for _ in range(steps):
            ms = (rows_ms + context_ms * context) * factor
            end_s += ms / 1000
            took_ms.append(ms)
            ends_s.append(end_s)
            if end_s >= until_s:
                break
            context += rows

    def _alike(self, now: float) -> tuple[int, float]:
        """(how many steps from now on run the same rows, when that ends whatever their number)."""
        steps, until_s, size = STRETCH_STEPS_MAX, inf, self.spec.block_tokens
        if len(self._works) < self._scheduler.running:
            return 1, inf
        for work in self._works:
            one = work.sequence
            room = len(one.table) * size - one.known + 1
            steps = min(steps, one.end - one.known, room)
            until_s = min(until_s, one.deadline_s)
        if self._scheduler.queued:
            until_s = min(until_s, self._scheduler.settled_until_s(now))
        return steps, until_s

    def _cut(self, now: float) -> None:
        """Let the step that runs now be the last one of the stretch."""
        keep = bisect_left(self._ends_s, now) + 1
        del self._ends_s[keep:], self._took_ms[keep:]

    def _finish(self) -> None:
        """Do what the steps of the stretch did."""
        steps, end_s = len(self._ends_s), self._ends_s[-1]
        self.steps += steps
        self._measure()
        for work in self._works:
            sequence = work.sequence
            if sequence.computed + work.count == sequence.known:
                self._commit(sequence, work.count, steps, end_s)
            else:
                sequence.computed += work.count
                self._publish(sequence)
        self._works = []
        self._kv.check()

    def _commit(self, sequence: Sequence, count: int, steps: int, end_s: float) -> None:
        sequence.computed += count + steps - 1
        sequence.known += steps
        if sequence.computed >= (sequence.published + 1) * self.spec.block_tokens:
            self._publish(sequence)
        if not sequence.reported:
            sequence.reported = True
            self._hot.touch(sequence.hashes[: sequence.published])
            self._told.append(First(sequence.id, end_s, sequence.cached_tokens or 0))
        if sequence.known >= sequence.end:
            self._scheduler.remove(sequence.id)
            self._told.append(Ended(sequence.id, end_s))

    def _publish(self, sequence: Sequence) -> None:
        """Blocks that the answer has a part in are nobody else's, but stay as long as others."""
        until = sequence.computed // self.spec.block_tokens
        while sequence.published < until:
            index = sequence.published
            if index == len(sequence.hashes):
                name = f"{sequence.id} {index}".encode()
                sequence.hashes.append(blake2b(name, digest_size=HASH_BYTES).digest())
            self._kv.publish(sequence.table, index, sequence.hashes[index])
            sequence.published += 1

    def _measure(self) -> None:
        """As the engine does: before what was planned is done."""
        rows, prefill, looked_at = self._ran
        self.prefill_tokens += prefill
        if prefill:
            self._times.observe_prefill(prefill, looked_at, rows, self._took_ms[0])
        else:
            self._times.observe_each(rows, self._took_ms)

    def _remember(self, now: float) -> None:
        said = self._say()
        if said != self._said:  # without the table, which each step moves a little
            self._said = said
            self._loads.append(self._load())
            self._load_times_s.append(now)
            if len(self._loads) > 2 * LOADS_MAX:
                del self._loads[:LOADS_MAX], self._load_times_s[:LOADS_MAX]

    def _say(self) -> tuple[int, int, int, float, float]:
        scheduler = self._scheduler
        used = 1.0 - self._kv.available / self._config.blocks
        rate = self._times.prefill.ms_per_token
        return scheduler.running, scheduler.queued, scheduler.queued_prefill_tokens, used, rate

    def _load(self) -> Load:
        running, queued, queued_prefill_tokens, used, rate = self._said
        return Load(
            running=running,
            queued=queued,
            queued_prefill_tokens=queued_prefill_tokens,
            sequences_max=self._config.sequences_max + self._config.waiting_max,
            kv_used_share=used,
            step_ms=self._times.table,
            prefill_ms_per_token=rate,
            queued_prefill_ms=self._scheduler.queued_prefill_ms(self._times.prefill),
            prefill_token_ms=self._times.prefill.token_ms,
            prefill_pair_ms=self._times.prefill.pair_ms,
            prefill_share=self._scheduler.prefill_share(self._times),
        )


def _request(request: str, max_tokens: int) -> Request:
    return Request(
        id=request,
        model="",
        tokenizer_hash="",
        salt=b"",
        prompt=(),
        sampling=_GREEDY,
        seed=0,
        choice=0,
        max_tokens=max_tokens,
        eos_ids=frozenset(),
    )
