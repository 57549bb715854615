"""Which tokens the next step runs. Decides; touches block tables, and nothing else.

    expire     who has no time left, or whose client does not read
    decodes    every running sequence that needs one id, most important first; a class may rest
               while others should have begun (`rests`)
    prefills   chunks for the rest of the budget, running and waiting alike, most important first;
               a sequence that meets blocks which were loaded for it goes on behind them

A sequence that needs a block when none is left preempts the least important one, which goes back to
the queue. What it had computed goes to the host tier if copying it there and back takes less time
than computing it again, else it is computed again. The order of importance is total, so the most
important one always gets on. A waiting sequence is admitted when its whole prefix fits, and pushes
aside only sequences of a lower class that have not waited their way up to its own, and each of them
`preemptions_max` times at most: a storm of important requests ends in everybody's progress.
"""

from collections.abc import Set
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from firstlight.shared.blocks import BLOCK_TOKENS, blocks_for
from firstlight.shared.drafting.prefilltimes import PrefillTimes, pairs
from firstlight.shared.drafting.steptimes import StepTimes
from firstlight.shared.engine.kv.manager import KvManager, Loading
from firstlight.shared.engine.plan import EngineConfig, Turn, TurnEvent
from firstlight.shared.engine.queue import Importance, WaitingQueue, importance, level, lifted_s
from firstlight.shared.engine.rests import Rests, Unbegun
from firstlight.shared.engine.sequence import Sequence
from firstlight.shared.errors import DeadlineError, FirstlightError

_ROUNDING_S = 1e-6
"""More than sums of times are off."""


@dataclass(slots=True)
class Work:
    """What one sequence runs in the step that is being planned."""

    sequence: Sequence
    count: int
    """Known tokens to run."""
    drafted: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def samples(self) -> bool:
        """Whether it catches up, so that its last row's logits are wanted."""
        return self.sequence.computed + self.count == self.sequence.known

    @property
    def looked_at(self) -> int:
        """Tokens that its prefill rows look at, all together."""
        return pairs(self.count - self.samples, self.sequence.computed)

    @property
    def rows(self) -> int:
        """Rows in the step."""
        return self.count + len(self.drafted)


class Scheduler:
    """Sequences that run (hold blocks) and that wait (hold none)."""

    def __init__(self, config: EngineConfig, kv: KvManager, *, block_copy_ms: float = 0.0) -> None:
        """`block_copy_ms`: of one block between the tiers, one way."""
        self._config, self._kv = config, kv
        self._block_tokens = kv.block_tokens
        self._block_copy_ms, self._prefill_ms_per_token = block_copy_ms, 0.0
        self._running: dict[str, Sequence] = {}
        self._waiting = WaitingQueue()
        self._works: dict[str, Work] = {}
        self._turns: list[TurnEvent] = []
        self.preemptions = 0
        """How often a sequence lost its place."""
        self.offloads = 0
        """How often of these its KV went to the host tier."""
        self._met: list[str] = []
        self._rests = Rests(config.slas)

    @property
    def running(self) -> int:
        """Sequences that hold a place."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Sequences that wait for one."""
        return len(self._waiting)

    @property
    def queued_prefill_tokens(self) -> int:
        """Tokens to compute before everyone here has its next id."""
        tokens = 0
        for sequence in self._running.values():
            behind = sequence.known - sequence.computed
            if behind > 1:
                tokens += behind - 1
        return tokens + sum(sequence.uncached_tokens for sequence in self._waiting.all())

    def queued_prefill_ms(self, prefill: PrefillTimes) -> float:
        """What those should take, each at its position."""
        ms = 0.0
        for one in self._running.values():
            behind = one.known - one.computed - 1
            if behind > 0:
                ms += prefill.ms(behind, pairs(behind, one.computed))
        for one in self._waiting.all():
            left = one.uncached_tokens
            ms += prefill.ms(left, pairs(left, one.known - left))
        return ms

    def prefill_share(self, times: StepTimes) -> float:
        """Of a step's time that prefill gets beside those who decode now."""
        decoding = sum(one.known - one.computed == 1 for one in self._running.values())
        if not decoding:
            return 1.0
        decode_ms = times.ms(decoding)
        spare_ms = self._config.spare_ms(decode_ms)
        return spare_ms / (spare_ms + decode_ms)

    def all(self) -> list[Sequence]:
        """Everyone here."""
        return [*self._running.values(), *self._waiting.all()]

    def get(self, request: str) -> Sequence | None:
        """The sequence of a request."""
        return self._running.get(request) or self._waiting.get(request)

    def turns(self) -> tuple[TurnEvent, ...]:
        """What was done with sequences since the last call."""
        turns, self._turns = tuple(self._turns), []
        return turns

    def met(self) -> tuple[str, ...]:
        """Requests for which no more blocks need be loaded, since the last call."""
        met, self._met = tuple(self._met), []
        return met

    def add(self, sequence: Sequence, now: float) -> None:
        """A new sequence waits."""
        promised_s = self._config.slas.of(sequence.request.priority)
        sequence.due_s = min(sequence.arrived_s + promised_s, sequence.deadline_s)
        self._enqueue(sequence, now)

    def remove(self, request: str, *, trusted: bool = True) -> list[int]:
        """Free a sequence at once; returns the blocks to scrub if its KV is not `trusted`."""
        sequence = self.get(request)
        if sequence is None:
            return []
        self.settle(sequence)
        self._waiting.discard(request)
        if sequence.parked is not None:
            self._kv.unpark(sequence.parked)
            sequence.parked = None
        if self._running.pop(request, None) is None:
            return []
        if not trusted:
            return self._kv.discard(sequence.table, sequence.hashes)
        self._kv.release(sequence.table)
        return []

    def expect(self, sequence: Sequence, end: int, hold_until_s: float) -> None:
        """Its first `end` blocks are on their way, the last one first.

        At most as many as leave it a token to compute. Until `hold_until_s` it waits for them.
        """
        end = min(end, (sequence.known - 1) // self._block_tokens)
        loading = sequence.loading
        if loading is not None and loading.end == end:
            loading.hold_until_s = hold_until_s
            return
        self.settle(sequence)
        if end * self._block_tokens > sequence.computed:
            sequence.loading = Loading(end, end, hold_until_s)
        else:
            self._met.append(sequence.id)

    def settle(self, sequence: Sequence) -> None:
        """No more blocks come; what has landed and was not met is only cached."""
        if sequence.loading is not None:
            self._kv.abandon(sequence.loading)
            sequence.loading = None

    def expire(self, now: float) -> list[tuple[Sequence, FirstlightError]]:
        """Remove those whose time is over or whose client did not read, with the reason."""
        gone: list[tuple[Sequence, FirstlightError]] = []
        for sequence in self.all():
            stood = sequence.stalled_since_s is not None
            if not stood and sequence.known < sequence.credit and now < sequence.deadline_s:
                continue  # nearly all of them, in every step
            error: FirstlightError | None = sequence.stall(now, self._config.credit_timeout_s)
            if stood != sequence.stalled:
                self._note(sequence, Turn.STALLED if sequence.stalled else Turn.RESUMED)
            if now >= sequence.deadline_s:
                error = DeadlineError(
                    f"not finished within {sequence.request.budget_s:g} s: {sequence.generated} of "
                    f"up to {sequence.request.max_tokens} tokens"
                )
            if error is not None:
                self.remove(sequence.id)
                gone.append((sequence, error))
        return gone

    def plan(self, now: float, times: StepTimes) -> list[Work]:
        """Work for the next step: no more tokens than the budget, all with blocks to write to."""
        self._works = {}
        self._prefill_ms_per_token = times.prefill.ms_per_token
        for sequence in self.all():
            if sequence.loading is not None:
                self._look(sequence)
        ready, behind = self._ready(), self._behind(now)
        resting = self._resting(ready, behind, now, times)
        self._plan_decodes([one for one in ready if _level(one) not in resting], now)
        self._plan_prefills(behind, now, times)
        if resting and not self._works:
            self._rests.in_vain()
            self._plan_decodes(ready, now)
        for work in self._works.values():
            if work.sequence.first_step_s is None:
                work.sequence.first_step_s = now
                self._note(work.sequence, Turn.FIRST_STEP)
        return list(self._works.values())

    def settled_until_s(self, now: float) -> float:
        """How long those who find no place now find none, if nothing but time goes on."""
        waiting = self._waiting.all()
        lifts = (lifted_s(sequence, now, self._config) for sequence in waiting)
        deadlines = (sequence.deadline_s for sequence in waiting)
        return min(min(lifts, default=inf), min(deadlines, default=inf)) - _ROUNDING_S

    def rank(self, sequence: Sequence, now: float) -> Importance:
        """Sorts the most important sequence first."""
        return sequence.standing or importance(sequence, now, self._config)

    def _ready(self) -> list[Sequence]:
        """Those who run and need one id, most important first."""
        ready = [
            one
            for one in self._running.values()
            if one.known - one.computed == 1 and one.known < one.credit
        ]
        ready.sort(key=attrgetter("standing"))
        return ready

    def _behind(self, now: float) -> list[Sequence]:
        """Those who have a prompt to compute, running and waiting alike, most important first."""
        behind = [
            *(one for one in self._running.values() if one.known - one.computed > 1),
            *self._waiting.all(),
        ]
        behind = [one for one in behind if not (one.stalled or self._holds(one, now))]
        behind.sort(key=lambda one: self.rank(one, now))
        return behind

    def _resting(
        self, ready: list[Sequence], behind: list[Sequence], now: float, times: StepTimes
    ) -> Set[int]:
        """Levels that do not decode in this step."""
        chunk = self._config.prefill_chunk
        step_ms = min(self._config.step_alone_max_ms, times.prefill.ms(chunk, pairs(chunk, 0)))
        unbegun = self._unbegun(behind, now) if ready else []
        return self._rests.resting(map(_level, ready), unbegun, step_ms, now)

    def _unbegun(self, behind: list[Sequence], now: float) -> list[Unbegun]:
        """Those of whom nothing was computed yet, as many as there are places for."""
        free, unbegun = self._config.sequences_max - len(self._running), list[Unbegun]()
        for one in behind:
            if one.first_step_s is not None:
                continue
            if one.standing is None:  # it has no place yet
                if free <= 0:
                    continue
                free -= 1
            unbegun.append(Unbegun(self.rank(one, now)[0], now >= one.due_s))
        return unbegun

    def _plan_decodes(self, ready: list[Sequence], now: float) -> None:
        running, works, size = self._running, self._works, self._block_tokens
        for sequence in ready:
            fits = sequence.known <= len(sequence.table) * size  # nearly all, in every step
            if sequence.id in running and (fits or self._room(sequence, sequence.known, now)):
                works[sequence.id] = Work(sequence, 1)

    def _plan_prefills(self, behind: list[Sequence], now: float, times: StepTimes) -> None:
        chunk = min(self._config.prefill_chunk, self._config.step_tokens_max - len(self._works))
        left_ms, full = self._prefill_budget_ms(times), False
        for sequence in behind:
            if chunk <= 0 or left_ms <= 0:
                break
            if sequence.id not in self._running:
                # Who waits behind one that finds no place waits too; who has one goes on: it may
                # well be the one that the first waits for.
                full = full or not self._admit(sequence, now)
                if full:
                    continue
            if not self._meet(sequence, now):
                continue
            start = sequence.computed
            able = times.prefill.tokens(left_ms, start) // BLOCK_TOKENS * BLOCK_TOKENS
            if not able and self._prefilling():
                break  # a block is the least, for one sequence
            take = min(chunk, max(able, BLOCK_TOKENS), sequence.reach - start)
            if self._room(sequence, start + take, now):
                self._works[sequence.id] = Work(sequence, take)
                chunk -= take
                left_ms -= times.prefill.ms(take, pairs(take, start))

    def _holds(self, sequence: Sequence, now: float) -> bool:
        """Whether it would compute now what is about to be here."""
        loading = sequence.loading
        if loading is None or now >= loading.hold_until_s:
            return False
        here = sequence.computed
        if sequence.id not in self._running:
            here = self._here(sequence)
        return loading.front * self._block_tokens > here

    def _look(self, sequence: Sequence) -> None:
        """What has landed for it; nothing is of use any more once it has come to the end itself."""
        loading = sequence.loading
        assert loading is not None
        self._kv.look(loading, sequence.hashes)
        if loading.end * self._block_tokens <= sequence.computed:
            self.settle(sequence)
            self._met.append(sequence.id)

    def _meet(self, sequence: Sequence, now: float) -> bool:
        """Go on behind the loaded blocks, if it has come to them; False: it gave way itself."""
        loading = sequence.loading
        if loading is None or loading.front * self._block_tokens > sequence.computed:
            return True
        tokens = loading.end * self._block_tokens
        if tokens > sequence.computed:  # else more was found here when it got its place
            if not self._room(sequence, tokens, now):
                return False
            self._kv.meet(sequence.table, loading, sequence.computed)
            if sequence.cached_tokens is not None and not sequence.reported:
                found = sequence.cached_tokens + tokens - sequence.computed
                sequence.cached_tokens = min(found, sequence.prompt_tokens)
            sequence.computed = tokens
        self.settle(sequence)
        self._met.append(sequence.id)
        return True

    def _prefill_budget_ms(self, times: StepTimes) -> float:
        """What prefill may add to the step, or `step_alone_max_ms` of its own."""
        if not self._works:
            return self._config.step_alone_max_ms
        return self._config.spare_ms(times.ms(len(self._works)))

    def _prefilling(self) -> bool:
        return any(not work.samples or work.count > 1 for work in self._works.values())

    def _admit(self, sequence: Sequence, now: float) -> bool:
        """Give a waiting sequence a place, and the blocks of its prefix that are cached."""
        while not self._fits(sequence):
            victim = self._lesser(sequence, now)
            if victim is None:
                return False
            self._preempt(victim, now)
        self._waiting.take(sequence.id, now)
        sequence.standing = importance(sequence, now, self._config)
        self._running[sequence.id] = sequence
        self._attach(sequence)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(sequence.computed, sequence.prompt_tokens)
        self._note(sequence, Turn.ADMITTED, sequence.computed)
        return True

    def _attach(self, sequence: Sequence) -> None:
        """Start behind what was parked for it, or what is cached of its prefix."""
        parked, sequence.parked = sequence.parked, None
        if parked is not None and (tokens := self._kv.resume(sequence.table, parked)):
            sequence.computed = tokens
            sequence.published = min(parked.published, tokens // self._block_tokens)
            return
        sequence.computed = self._kv.attach(sequence.table, sequence.hashes, sequence.known)
        sequence.published = len(sequence.table)

    def _fits(self, sequence: Sequence) -> bool:
        if len(self._running) >= self._config.sequences_max:
            return False
        size = self._block_tokens
        hits = self._kv.hit_blocks(sequence.hashes, sequence.known)
        held = hits - self._kv.idle_hits(sequence.hashes, hits)
        promised = sum(
            blocks_for(short, size)
            for one in self._running.values()
            if (short := one.known - len(one.table) * size) > 0
        )
        return blocks_for(sequence.known, size) - held <= self._kv.available - promised

    def _lesser(self, sequence: Sequence, now: float) -> Sequence | None:
        """Whom a waiting sequence may push aside: the stalled, and those of a lower class."""
        own, most = level(sequence, now, self._config), self._config.preemptions_max
        able = [
            one
            for one in self._running.values()
            if one.stalled
            or (
                one.request.priority > sequence.request.priority
                and level(one, now, self._config) > own
                and one.preempted < most
            )
        ]
        return max(able, key=lambda one: (one.stalled, self.rank(one, now)), default=None)

    def _room(self, sequence: Sequence, tokens: int, now: float) -> bool:
        """Blocks for `tokens` tokens, taken from the less important; False: it gave way itself."""
        if tokens <= len(sequence.table) * self._block_tokens:
            return True
        while not self._kv.grow(sequence.table, tokens):
            victim = max(self._running.values(), key=lambda one: (one.stalled, self.rank(one, now)))
            self._preempt(victim, now)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence, now: float) -> None:
        self._works.pop(victim.id, None)
        del self._running[victim.id]
        if self._copying_pays(victim):
            victim.parked = self._kv.park(
                victim.table, victim.hashes, victim.computed, victim.published
            )
        self._kv.release(victim.table)
        self.offloads += victim.parked is not None
        lost = 0 if victim.parked is not None else victim.computed
        self._note(victim, Turn.PREEMPTED, lost)
        victim.computed = victim.published = 0
        self.preemptions += 1
        victim.preempted += 1
        self._enqueue(victim, now)

    def _copying_pays(self, victim: Sequence) -> bool:
        """Whether its KV is copied out and back faster than it is computed; no, until measured."""
        copy_ms = 2 * blocks_for(victim.computed, self._block_tokens) * self._block_copy_ms
        return copy_ms < victim.computed * self._prefill_ms_per_token

    def _here(self, sequence: Sequence) -> int:
        """Leading tokens that a waiting sequence will not have to compute."""
        parked = 0 if sequence.parked is None else sequence.parked.tokens
        return max(parked, self._kv.leading(sequence.hashes, sequence.known) * self._block_tokens)

    def _note(self, sequence: Sequence, turn: Turn, tokens: int = 0) -> None:
        self._turns.append(TurnEvent(sequence.id, turn, sequence.known, tokens))

    def _enqueue(self, sequence: Sequence, now: float) -> None:
        sequence.standing = None
        sequence.uncached_tokens = sequence.known - self._here(sequence)
        self._waiting.push(sequence, now)


def _level(sequence: Sequence) -> int:
    """Its class, as it stood when it got its place."""
    assert sequence.standing is not None, sequence.id
    return sequence.standing[0]
