"""The engine: requests in, ids out, a step at a time. Start reading here.

    add ─► Scheduler.plan ─► speculation.allot ─► Runner.run ─► judge ─► Outcome

It knows no network and no clock, and is not thread-safe: whoever owns it calls everything from one
thread. A hint is a claim; an id is committed only if it is the one that was sampled, so hints
change how many steps an answer takes, and never the answer.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from math import inf

from firstlight.shared.blocks import BLOCK_TOKENS, BlockCounts, Buffer
from firstlight.shared.drafting.controller import Controller, worth_drafting
from firstlight.shared.drafting.steptimes import StepTimes
from firstlight.shared.engine.check import check_request
from firstlight.shared.engine.kv.manager import KvManager
from firstlight.shared.engine.kv.pins import Pins
from firstlight.shared.engine.plan import (
    EngineConfig,
    EngineCounts,
    Handover,
    Outcome,
    Prefix,
    Runner,
    SequencePlan,
    StepPlan,
    StepResult,
    StepRows,
)
from firstlight.shared.engine.scheduler import Scheduler, Work
from firstlight.shared.engine.sequence import Sequence
from firstlight.shared.engine.speculation import Draft, allot
from firstlight.shared.engine.verdict import Verdict, judge, outcome
from firstlight.shared.errors import CapacityError, FirstlightError, StaleError
from firstlight.shared.stream import ending
from firstlight.shared.types import FinishReason, Load, Request, check_ids

Failure = tuple[str, int, FirstlightError]
Spill = Callable[[bytes, Callable[[], bytes]], None]
"""Takes the hash of a block that leaves the host tier, and a way to read it, now or never."""


class Engine:
    """Continuous batching over one runner and one pool of KV blocks."""

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self._runner, self._config = runner, config
        self.spill: Spill = lambda block_hash, read: None
        """What becomes of blocks that leave the host tier."""
        self.distrust: Callable[[Collection[bytes]], None] = lambda hashes: None
        """Hears of blocks that no tier may keep."""
        self._kv = KvManager(config.blocks, config.host_blocks)
        speed = config.copy_bytes_per_s
        block_copy_ms = inf if speed is None else runner.block_bytes / speed * 1000
        self._pins = Pins(self._kv, config)
        self._scheduler = Scheduler(config, self._kv, block_copy_ms=block_copy_ms)
        self._controller = Controller()
        self._times = StepTimes()
        self._drafts: dict[str, Draft] = {}
        self._ended: dict[str, Outcome] = {}
        """Of requests that came with all of their answer; told by the next step."""
        self._held: list[tuple[bytes, ...]] = []
        self._steps = 0
        self._hint_ids_offered = self._hint_ids_dropped = 0

    def add(
        self,
        request: Request,
        *,
        epoch: int,
        committed: tuple[int, ...] = (),
        credit: int,
        now: float,
        prefill_only: bool = False,
    ) -> None:
        """Take a request, with the ids committed to it elsewhere, and commit up to `credit`.

        A request that is here already is replaced by a higher epoch; its blocks stay cached. With
        `prefill_only` nothing is committed: it ends with a `Handover` once its KV is computed.
        Raises `StaleError`, `RequestError` or `CapacityError`.
        """
        held = self._scheduler.get(request.id) or self._ended.get(request.id)
        if held is not None and epoch <= held.epoch:
            raise StaleError(
                f"request {request.id} is here with epoch {held.epoch}, not below {epoch}"
            )
        vocab = self._runner.vocab
        check_request(request, committed, self._config, vocab=vocab, prefill_only=prefill_only)
        if held is not None:
            self.cancel(request.id)
        finish = committed and ending(
            committed[-1],
            generated=len(committed),
            max_tokens=request.max_tokens,
            eos_ids=request.eos_ids,
        )
        position = len(request.prompt) + len(committed)
        if finish and not prefill_only:
            self._check_capacity(len(self._ended))
            self._ended[request.id] = Outcome(request.id, epoch, position, (), finish=finish)
            return
        self._check_capacity(self._scheduler.running + self._scheduler.queued)
        sequence = Sequence(
            request,
            epoch=epoch,
            committed=committed,
            credit=position + 1 if prefill_only else credit,
            now=now,
            prefill_only=prefill_only,
        )
        self._scheduler.add(sequence, now)

    def candidate(
        self, request: str, start: int, ids: tuple[int, ...], sources: tuple[str, ...]
    ) -> None:
        """Offer ids for the next step only; `sources[i]` says who offered `ids[i]`.

        Ignored unless `start` is the sequence's next position; ids from the first impossible one on
        are dropped. The latest offer for a step counts.
        """
        sequence = self._scheduler.get(request)
        length = min(len(ids), len(sources), self._config.hint_ids_max)
        if sequence is None or start != sequence.known or not sequence.draft_max:
            length = 0
        wrong = check_ids(ids[:length], self._runner.vocab)
        length = length if wrong is None else wrong
        self._hint_ids_offered += len(ids)
        self._hint_ids_dropped += len(ids) - length
        if length:
            before = self._drafts.get(request)
            self._hint_ids_dropped += 0 if before is None else len(before.ids)
            self._drafts[request] = Draft(start, ids[:length], sources[:length])

    def prefix(self, request: str) -> Prefix | None:
        """What a request's prefix is, and how much of it is here; None if it is not known."""
        sequence = self._scheduler.get(request)
        if sequence is None:
            return None
        hashes = tuple(sequence.hashes[: (sequence.known - 1) // BLOCK_TOKENS])
        return Prefix(hashes, self._kv.leading(hashes, sequence.known))

    def expect(self, request: str, end: int, hold_until_s: float) -> None:
        """The first `end` blocks of a request will `land`, the last one first.

        Until `hold_until_s` it computes nothing, unless they have come to what is here. Harmless
        if the request is not here.
        """
        sequence = self._scheduler.get(request)
        if sequence is not None:
            self._scheduler.expect(sequence, end, hold_until_s)

    def land(self, block_hash: bytes, payload: Buffer) -> None:
        """A block's KV, from elsewhere and known to be right. Dropped if there is no room."""
        assert len(payload) == self._runner.block_bytes, len(payload)
        slot = self._kv.land(block_hash)
        self._move()
        if slot is not None:
            self._runner.write_slot(slot, payload)

    def no_more(self, request: str) -> None:
        """What was expected for a request and has not landed will not: it is computed."""
        sequence = self._scheduler.get(request)
        if sequence is not None and sequence.loading is not None:
            sequence.loading.hold_until_s = 0.0

    def read(self, block_hash: bytes) -> bytes | None:
        """A block's KV, from whichever tier of the engine has it."""
        block, slot = self._kv.find(block_hash)
        if block is not None:
            return self._runner.read_block(block)
        return None if slot is None else self._runner.read_slot(slot)

    def credit(self, request: str, position: int) -> None:
        """Commit up to this absolute position; a lower one than before is late, and ignored."""
        sequence = self._scheduler.get(request)
        if sequence is not None and not sequence.prefill_only:
            sequence.credit = max(sequence.credit, position)

    def cancel(self, request: str) -> None:
        """Drop a request and free its blocks at once; harmless if it is not here."""
        self._ended.pop(request, None)
        self._forget(request)
        self._scheduler.remove(request)

    def step(self, now: float) -> StepResult:
        """Plan, run, judge. `rows` is 0 if there was nothing to run."""
        expired = self._scheduler.expire(now)
        failures = [(sequence.id, sequence.epoch, error) for sequence, error in expired]
        for sequence, _ in expired:
            self._forget(sequence.id)
        self._pins.expire(now)
        outcomes, self._ended = list(self._ended.values()), {}
        works = self._plan(now)
        self._move()
        plan = StepPlan(tuple(_planned(work) for work in works))
        ms = self._run(works, plan, now, outcomes, failures) if works else 0.0
        self._drafts.clear()
        self._kv.check()
        held, self._held = self._held, []
        return StepResult(
            outcomes=tuple(outcomes),
            failures=tuple(failures),
            turns=self._scheduler.turns(),
            met=self._scheduler.met(),
            held=tuple(held),
            plan=plan,
            rows=plan.rows,
            ms=ms,
            ran=tuple(one.ran for one in plan.sequences),
        )

    def flush_cache(self) -> None:
        """Forget all prefixes and pins; running sequences keep their blocks."""
        self._pins.clear()
        self._kv.flush()

    def pin(self, hashes: tuple[bytes, ...]) -> None:
        """Evict a prefix last, given by the hashes of its blocks from the first on.

        It need not be here yet. Raises `RequestError`, or `CapacityError` beyond `pinned_share`.
        """
        self._pins.pin(hashes)

    def unpin(self, hashes: tuple[bytes, ...]) -> None:
        """Take a pin back; harmless if there is none."""
        self._pins.unpin(hashes)

    def release(self, handover: Handover) -> None:
        """A handover was fetched, or is not wanted any more; harmless if it was let go."""
        self._pins.release(handover)

    @property
    def has_work(self) -> bool:
        """Whether a step could do anything, now or when its clients read on."""
        return bool(self._scheduler.running or self._scheduler.queued or self._ended)

    @property
    def blocks(self) -> BlockCounts:
        """free + used + cached = total."""
        return self._kv.counts

    @property
    def host_blocks(self) -> BlockCounts:
        """The same of the host tier."""
        return self._kv.host_counts

    @property
    def block_bytes(self) -> int:
        """Size of a block's KV as bytes."""
        return self._runner.block_bytes

    @property
    def steps(self) -> int:
        """Steps that ran something."""
        return self._steps

    @property
    def counts(self) -> EngineCounts:
        """What happened so far, and what is pinned."""
        return EngineCounts(
            preemptions=self._scheduler.preemptions,
            offloads=self._scheduler.offloads,
            pins=self._pins.pins,
            handovers=self._pins.handovers,
            handovers_dropped=self._pins.dropped,
            pinned_blocks=self._kv.pinned,
            hint_ids_offered=self._hint_ids_offered,
            hint_ids_dropped=self._hint_ids_dropped,
        )

    def load(self) -> Load:
        """What a core says of itself; the link fills in what only it knows."""
        counts, config, prefill = self._kv.counts, self._config, self._times.prefill
        return Load(
            running=self._scheduler.running,
            queued=self._scheduler.queued,
            queued_prefill_tokens=self._scheduler.queued_prefill_tokens,
            sequences_max=config.sequences_max + config.waiting_max,
            kv_used_share=counts.used / counts.total,
            steps=self._steps,
            step_ms=self._times.table,
            prefill_ms_per_token=prefill.ms_per_token,
            queued_prefill_ms=self._scheduler.queued_prefill_ms(prefill),
            prefill_token_ms=prefill.token_ms,
            prefill_pair_ms=prefill.pair_ms,
            prefill_share=self._scheduler.prefill_share(self._times),
        )

    def next_positions(self) -> Mapping[str, int]:
        """Sequences that can take hints in the next step, and where these have to start."""
        chunk = self._config.prefill_chunk
        return {
            sequence.id: sequence.known
            for sequence in self._scheduler.all()
            if sequence.draft_max > 0 and sequence.behind <= chunk
        }

    def worth_drafting(
        self, request: str, sources: tuple[str, ...], source: str, token_ms: float
    ) -> tuple[int, int]:
        """(behind how many ids of a candidate, how many ids) to draft for the next step.

        `sources` says who offered each id of the candidate. The step waits for the drafter,
        `token_ms` an id. Where that does not pay there is nothing to draft, but for one id of a
        request that probes; nor is there in a step that prefills.
        """
        running = [one for one in self._scheduler.all() if one.queued_since_s is None]
        sequence, controller = self._scheduler.get(request), self._controller
        if sequence not in running or any(one.behind > 1 for one in running):
            return 0, 0
        most = min(self._config.hint_ids_max, sequence.draft_max)
        behind, count = worth_drafting(
            controller.acceptance(request, source),
            self._times,
            sequences=len(running),
            odds=controller.survival(request, sources),
            token_ms=token_ms,
            most=most,
        )
        if not count and not sources and controller.probes(request):
            count = min(1, most)
        return behind, count

    def _check_capacity(self, here: int) -> None:
        config, scheduler = self._config, self._scheduler
        if here < config.sequences_max + config.waiting_max:
            return
        wait_s = scheduler.queued_prefill_tokens * self._times.prefill.ms_per_token / 1000
        raise CapacityError(
            f"{scheduler.running} requests run, {scheduler.queued} wait and {len(self._ended)} "
            "have ended before they began: no more are allowed",
            retry_after_s=min(max(wait_s, 1.0), 30.0),
        )

    def _plan(self, now: float) -> list[Work]:
        works = self._scheduler.plan(now, self._times)
        allot(works, self._drafts, self._controller, self._times, self._kv, self._config)
        assert sum(work.rows for work in works) <= self._config.step_tokens_max
        return works

    def _run(
        self,
        works: list[Work],
        plan: StepPlan,
        now: float,
        outcomes: list[Outcome],
        failures: list[Failure],
    ) -> float:
        """Run a plan and add what came of it; returns the time it took in ms.

        What the runner raises is nobody's request but a fault of this process: it goes up.
        """
        ran = self._runner.run(plan)
        self._steps += 1
        self._measure(works, ran)
        for work, sampled in zip(works, ran.sampled, strict=True):
            if not work.samples:
                work.sequence.computed += work.count
                self._publish(work.sequence)
                continue
            verdict = judge(work, sampled)
            if verdict.error:
                failures.append(self._fail(work.sequence, verdict.error))
            elif work.sequence.prefill_only:
                outcomes.append(self._hand_over(work, now))
            else:
                outcomes.append(self._commit(work, verdict))
        return ran.ms

    def _commit(self, work: Work, verdict: Verdict) -> Outcome:
        """Take the ids of a verdict, and let go of rows that were drafted in vain."""
        sequence = work.sequence
        for source, matched in verdict.matches:
            self._controller.observe(sequence.id, source, matched)
        made = outcome(work, verdict)
        sequence.computed += work.count + len(made.ids) - 1
        sequence.commit(made.ids)
        self._kv.trim(sequence.table, sequence.computed)
        if made.finish and verdict.spoiled:
            self._discard(sequence)
            return made
        self._publish(sequence)
        if made.finish or made.cached_tokens is not None:
            self._hold(sequence)
        if made.finish:
            self._forget(sequence.id)
            self._scheduler.remove(sequence.id)
        return made

    def _hand_over(self, work: Work, now: float) -> Outcome:
        """End a sequence whose KV is computed. The row was sampled to see that it is finite."""
        sequence = work.sequence
        made = outcome(work, Verdict((), finish=FinishReason.LENGTH))
        sequence.computed += work.count
        self._publish(sequence)
        self._hold(sequence)
        chain = sequence.hashes[: sequence.published]
        handover = self._pins.hand_over(sequence.id, sequence.epoch, chain, now)
        self._forget(sequence.id)
        self._scheduler.remove(sequence.id)
        return replace(made, handover=handover)

    def _publish(self, sequence: Sequence) -> None:
        while (sequence.published + 1) * BLOCK_TOKENS <= sequence.computed:
            index = sequence.published
            self._kv.publish(sequence.table, index, sequence.hashes[index])
            sequence.published += 1

    def _move(self) -> None:
        """Before anything is written to blocks or slots that are given to others now."""
        if scrubs := self._kv.take_scrubs():
            self._runner.scrub(scrubs)
        moves = self._kv.take_moves()
        for slot, block_hash in moves.spills:
            self.spill(block_hash, partial(self._runner.read_slot, slot))
        if moves.saves or moves.fills:
            self._runner.move(moves)

    def _hold(self, sequence: Sequence) -> None:
        """Tell which of its chain is here: all that was published, unless it was flushed since."""
        chain = sequence.hashes[: sequence.published]
        here = self._kv.leading(chain, len(chain) * BLOCK_TOKENS + 1)
        if here:
            self._held.append(tuple(chain[:here]))

    def _fail(self, sequence: Sequence, message: str) -> Failure:
        """Only this sequence ends."""
        self._discard(sequence)
        return sequence.id, sequence.epoch, FirstlightError(message)

    def _discard(self, sequence: Sequence) -> None:
        """Drop a sequence whose KV is not finite, and clear it: nothing spreads from there."""
        self.distrust(sequence.hashes)
        self._runner.scrub(self._scheduler.remove(sequence.id, trusted=False))
        self._forget(sequence.id)

    def _forget(self, request: str) -> None:
        self._drafts.pop(request, None)
        self._controller.forget(request)

    def _measure(self, works: list[Work], ran: StepRows) -> None:
        sampling_rows = sum(1 + len(work.drafted) for work in works if work.samples)
        prefill = sum(work.count - work.samples for work in works)
        if prefill:
            looked_at = sum(work.looked_at for work in works)
            self._times.observe_prefill(prefill, looked_at, sampling_rows, ran.ms)
        else:
            self._times.observe(sampling_rows, ran.ms)


def _planned(work: Work) -> SequencePlan:
    sequence = work.sequence
    known = sequence.ids[sequence.computed : sequence.computed + work.count]
    return SequencePlan(
        request=sequence.id,
        start=sequence.computed,
        ids=(*known, *work.drafted),
        drafted=len(work.drafted),
        table=tuple(sequence.table),
        draws=sequence.draws(work.drafted) if work.samples else (),
    )
