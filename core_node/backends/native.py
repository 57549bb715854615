"""Our own engine as a backend: on a thread of its own, fed from a bounded inbox.

Each turn of the thread: take in what the links brought, offer each sequence that can use one the
best continuation from the mailbox (`drafting`, beside the engine, is one more source of it), take
one step, and hand all results to the event loop in one call. With nothing to do it saves what
it computed to the tier below, if there is one, and sleeps.
"""

import asyncio
import logging
import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Sequence
from dataclasses import replace

from firstlight.core_node.admission import Offer
from firstlight.core_node.backends.backend import ABORTED, Batch, Broken, Deliver, Failure
from firstlight.core_node.backends.inbox import Found, Inbox, Opened
from firstlight.core_node.backends.saver import LowerTier, Saver
from firstlight.core_node.drafting import CoreDrafting, DraftingSection, Foretold
from firstlight.core_node.mailbox import Mailbox
from firstlight.core_node.step_log import StepLog, StepRecord, drafts, step_record
from firstlight.core_node.timeline import Timelines
from firstlight.shared.blocks import BlockCounts, Buffer
from firstlight.shared.clock import monotonic_s, sleep_s
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.plan import Outcome, StepResult, Turn, TurnEvent
from firstlight.shared.errors import CapacityError, FirstlightError, RequestError
from firstlight.shared.types import Commit, Done, Hint, HintCount, Load, Mark, Request

log = logging.getLogger(__name__)

HAND_OVER_S = 0.0005
"""After a step with results the thread lets go of the interpreter for this long, so that the loop
sends them before the next step's Python competes with it."""
SAVE_AT_END_S = 2.0
"""How long a core that stops goes on saving."""
IDLE_STEP_S = 0.05
"""How long to sleep while all sequences wait for credit, unless something arrives."""
STOP_S = 10.0


class NativeBackend:
    """`Backend` over one `Engine`. Everything below `_run` belongs to the engine's thread."""

    def __init__(
        self,
        engine: Engine,
        offer: Offer,
        *,
        hint_ids_max: int,
        drafting: DraftingSection,
        foretold: Foretold | None = None,
        below: LowerTier | None = None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """`prepare` runs first on the engine's thread: settings that hold for one thread only."""
        self.offer = offer
        self._prepare = prepare
        self._engine = engine
        self._hint_ids_max = hint_ids_max
        self._saver = None if below is None else Saver(engine, below)
        self._mailbox = Mailbox(offer.vocab)
        self._drafting = CoreDrafting(drafting, self._mailbox, foretold)
        self._timelines = Timelines()
        self._log = StepLog()
        self._endings: list[tuple[str, str]] = []
        self._epochs: dict[str, int] = {}
        self._changed = threading.Condition()
        self._inbox = Inbox()
        self._stopping = False
        self._turns = 0
        """Calls of `step` that came back: while all sequences wait for credit nothing is run,
        but the core is not hung, and edges tell by this number.
        """
        self._load = Load()
        self._blocks = self._host_blocks = BlockCounts()
        self._thread: threading.Thread | None = None
        self._look()

    # Called on the event loop.

    def start(self, loop: AbstractEventLoop, deliver: Deliver, broken: Broken) -> None:
        """Start the thread."""
        assert self._thread is None, "started twice"
        self._thread = threading.Thread(
            target=self._run, args=(loop, deliver, broken), name="engine", daemon=True
        )
        self._thread.start()

    def open(self, request: Request, epoch: int, committed: tuple[int, ...], credit: int) -> None:
        """Queue a request for the next step. Raises `CapacityError` when too many wait for it."""
        item = Opened(request, epoch, committed, credit, monotonic_s())
        with self._changed:
            self._inbox.open(item)
            self._timelines.begin(request.id, item.arrived_s)
            self._timelines.note(request.id, "queued", item.arrived_s, f"{item.tokens} tokens")
            self._changed.notify()

    def hint(self, hint: Hint) -> None:
        """Queue a hint, the oldest dropped if too many wait. Wakes nobody: a hint is no work."""
        with self._changed:
            self._inbox.hint(hint)

    def credit(self, handle: str, position: int) -> None:
        """Allow commits up to `position`; never takes back what was allowed."""
        with self._changed:
            self._inbox.credit(handle, position)
            self._changed.notify()

    def cancel(self, handle: str) -> bool:
        """Stop a request; its blocks are free before the next step begins."""
        with self._changed:
            if not self._inbox.cancel(handle):
                self._timelines.end(handle)
                return False
            self._changed.notify()
            return True

    def note(self, handle: str, what: str, detail: str = "") -> None:
        """Mark that something happened to an assignment now. From any thread, never for a token."""
        self._timelines.note(handle, what, monotonic_s(), detail)

    def marks(self, handle: str) -> tuple[Mark, ...]:
        """What happened to an assignment so far."""
        return self._timelines.marks(handle)

    def flush_cache(self) -> None:
        """Forget cached prefixes before the next step, those of the tier below too."""
        with self._changed:
            self._inbox.flush = True
            self._changed.notify()

    def expect(self, handle: str, blocks: int, hold_s: float) -> None:
        """The first `blocks` blocks of a request will land; it waits for them, but not longer."""
        with self._changed:
            self._inbox.expect(handle, blocks, hold_s)
            self._changed.notify()

    def no_more(self, handle: str) -> None:
        """What was expected for a request and has not landed will not."""
        with self._changed:
            self._inbox.no_more(handle)
            self._changed.notify()

    def land(self, block_hash: bytes, payload: Buffer) -> None:
        """A block's KV from elsewhere. The caller bounds what has not come back as landed."""
        with self._changed:
            self._inbox.land(block_hash, payload)
            self._changed.notify()

    async def read(self, hashes: Sequence[bytes]) -> Found:
        """The KV of blocks, None where it is not here. Raises `CapacityError`."""
        loop = asyncio.get_running_loop()
        found: Future[Found] = loop.create_future()
        with self._changed:
            if self._stopping:
                raise CapacityError("this core stops")
            self._inbox.read(
                hashes, lambda blocks: loop.call_soon_threadsafe(_settle, found, blocks)
            )
            self._changed.notify()
        return await found

    def load(self) -> Load:
        """The engine's figures, and what waits in the inbox counted as queued."""
        with self._changed:
            return self._inbox.counted_in(self._load)

    def blocks(self) -> BlockCounts:
        """The KV pool after the latest step."""
        return self._blocks

    def host_blocks(self) -> BlockCounts:
        """The host tier, as then."""
        return self._host_blocks

    def steps(self) -> tuple[StepRecord, ...]:
        """What the latest steps did."""
        with self._changed:
            return self._log.records()

    def stop(self) -> None:
        """End the thread after the step that it is in."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(STOP_S)

    # Called on the engine's thread.

    def _run(self, loop: AbstractEventLoop, deliver: Deliver, broken: Broken) -> None:
        try:
            self._prepare()
            idle = False
            while (inbox := self._take(idle)) is not None:
                done, failures = self._cancel(inbox), self._open(inbox)
                self._tell(inbox)
                before = self._before(inbox)
                if before:
                    loop.call_soon_threadsafe(deliver, before)
                self._offer_hints()
                began_s = monotonic_s()
                result = self._step(began_s)
                batch = self._digest(result, done, failures, began_s)
                self._look()
                if batch or batch.rows:
                    loop.call_soon_threadsafe(deliver, batch)
                if batch:
                    sleep_s(HAND_OVER_S)
                self._record(inbox, result, batch, began_s)
                idle = not (result.rows or batch.done or batch.failures)
                if self._saver and not self._engine.has_work:
                    self._saver.save()
            self._refuse_reads()
            if self._saver:
                self._saver.finish(SAVE_AT_END_S)
        except Exception as error:
            if self._stopping or loop.is_closed():
                return
            log.critical("the engine failed as a whole", exc_info=error)
            self._refuse_reads()
            loop.call_soon_threadsafe(broken, error)

    def _take(self, idle: bool) -> Inbox | None:
        """What arrived since the last step; sleeps while there is nothing to do. None: stop."""
        with self._changed:
            while not self._stopping and not self._inbox:
                if self._engine.has_work and not idle:
                    break
                timeout_s = IDLE_STEP_S if self._engine.has_work or self._saver else None
                if not self._changed.wait(timeout_s):
                    break
            if self._stopping:
                return None
            inbox, self._inbox = self._inbox, Inbox()
            # Until the engine's own figures include them, the opens taken must not go uncounted.
            self._load = inbox.counted_in(self._load)
            return inbox

    def _cancel(self, inbox: Inbox) -> list[Done]:
        done = []
        for handle in inbox.cancels:
            if handle in self._epochs:
                self._endings.append((handle, ABORTED))
            epoch = self._epochs.get(handle, 0)
            self._engine.cancel(handle)
            done.append(self._done(handle, epoch, "cancelled"))
        return done

    def _open(self, inbox: Inbox) -> list[Failure]:
        failures = []
        for handle, item in inbox.opens.items():
            try:
                self._engine.add(
                    item.request,
                    epoch=item.epoch,
                    committed=item.committed,
                    credit=item.credit,
                    now=item.arrived_s,
                )
            except FirstlightError as error:
                failures.append(self._failure(handle, error))
                continue
            self._epochs[handle] = item.epoch
            self._mailbox.open(handle, item.request.prompt, item.committed)
            self._drafting.open(item.request, item.committed)
        return failures

    def _tell(self, inbox: Inbox) -> None:
        for handle, position in inbox.credits.items():
            self._engine.credit(handle, position)
        for hint in inbox.hints:
            self._mailbox.hint(hint)
        for handle, (blocks, hold_s) in inbox.expects.items():
            if blocks:
                self._engine.expect(handle, blocks, monotonic_s() + hold_s)
            else:
                self._engine.no_more(handle)
        if inbox.flush:
            self._engine.flush_cache()
            if self._saver is not None:
                self._saver.clear()

    def _before(self, inbox: Inbox) -> Batch:
        """What others need not wait for until the step is done."""
        for block_hash, payload in inbox.lands:
            if not inbox.flush:
                self._engine.land(block_hash, payload)
        for hashes, tell in inbox.reads:
            tell(list(map(self._engine.read, hashes)))
        prefixes = ((handle, self._engine.prefix(handle)) for handle in inbox.opens)
        return Batch(
            wanted=tuple(
                (handle, prefix)
                for handle, prefix in prefixes
                if prefix is not None and prefix.here < len(prefix.hashes)
            ),
            flushed=inbox.flush,
            landed_bytes=sum(len(payload) for _, payload in inbox.lands),
            hint_ids_dropped=tuple(inbox.hint_ids_dropped.items()),
        )

    def _refuse_reads(self) -> None:
        """Nobody will look for these blocks any more."""
        with self._changed:
            self._stopping = True
            reads, self._inbox.reads = self._inbox.reads, []
        for hashes, tell in reads:
            tell([None] * len(hashes))

    def _offer_hints(self) -> None:
        positions = self._engine.next_positions()
        self._drafting.offer(self._engine, positions, self._hint_ids_max)
        for handle, position in positions.items():
            found = self._mailbox.candidate(handle, self._hint_ids_max)
            if found.ids and found.start == position:
                self._engine.candidate(handle, found.start, found.ids, found.sources)

    def _step(self, now: float) -> StepResult:
        if not self._engine.has_work:
            return StepResult()
        result = self._engine.step(now)
        self._turns += 1
        return result

    def _digest(
        self, result: StepResult, done: list[Done], failures: list[Failure], began_s: float
    ) -> Batch:
        ended_s = monotonic_s()
        for event in result.turns:
            self._timelines.note(event.request, event.turn, began_s, _detail(event))
        commits = []
        for outcome in result.outcomes:
            if outcome.ids:
                commits.append(self._commit(outcome, ended_s))
            if outcome.finish is not None:
                self._endings.append((outcome.request, str(outcome.finish)))
                done.append(
                    self._done(outcome.request, outcome.epoch, "finished", str(outcome.finish))
                )
        for handle, _, error in result.failures:
            self._forget(handle)
            failures.append(self._failure(handle, error))
        if self._saver is not None:
            for chain in result.held:
                self._saver.held(chain)
        endings, self._endings = tuple(self._endings), []
        return Batch(
            commits=tuple(commits),
            done=tuple(done),
            failures=tuple(failures),
            rows=result.rows,
            ms=result.ms,
            ended_s=ended_s,
            prefill_tokens=result.prefill_tokens,
            drafts=drafts(result.outcomes),
            preemptions=sum(event.turn is Turn.PREEMPTED for event in result.turns),
            endings=endings,
            met=result.met,
            held=result.held,
        )

    def _commit(self, outcome: Outcome, now: float) -> Commit:
        handle = outcome.request
        self._mailbox.verified(handle, outcome.verified)
        self._drafting.committed(handle, outcome.position, outcome.ids)
        if outcome.started_s is not None:
            self.note(handle, "first id")
        return Commit(
            request=handle,
            epoch=outcome.epoch,
            position=outcome.position,
            ids=tuple(outcome.ids),
            chain=self._mailbox.committed(handle, outcome.ids),
            logprobs=tuple(outcome.logprobs),
            cached_tokens=outcome.cached_tokens,
            queue_ms=outcome.queue_ms,
            prefill_ms=None if outcome.started_s is None else (now - outcome.started_s) * 1000,
        )

    def _record(self, inbox: Inbox, result: StepResult, batch: Batch, began_s: float) -> None:
        """Note for people what this turn did."""
        failed = tuple((one.handle, str(one.error.kind)) for one in batch.failures)
        arrived = tuple((handle, item.arrived_s) for handle, item in inbox.opens.items())
        times = (began_s, batch.ended_s, monotonic_s())
        with self._changed:
            self._log.add(step_record(result, self._load, times, arrived, batch.endings + failed))

    def _done(self, handle: str, epoch: int, how: str, detail: str = "") -> Done:
        self.note(handle, how, detail)
        return Done(handle, epoch, self._forget(handle), self._timelines.end(handle))

    def _failure(self, handle: str, error: FirstlightError) -> Failure:
        # What is wrong with a request may quote it.
        quoting = isinstance(error, RequestError)
        self.note(handle, "failed", str(error.kind) if quoting else error.message)
        return Failure(handle, error, self._timelines.end(handle))

    def _forget(self, handle: str) -> tuple[tuple[str, HintCount], ...]:
        self._epochs.pop(handle, None)
        self._drafting.forget(handle)
        return self._mailbox.close(handle)

    def _look(self) -> None:
        """Take the engine's figures where the event loop can read them."""
        load = replace(self._engine.load(), steps=self._turns)
        with self._changed:
            self._load = load
        self._blocks = self._engine.blocks
        self._host_blocks = self._engine.host_blocks


def _settle(found: Future[Found], blocks: Found) -> None:
    if not found.done():  # whoever asked may be gone
        found.set_result(blocks)


def _detail(event: TurnEvent) -> str:
    if event.turn is Turn.ADMITTED:
        return f"{event.tokens} of {event.known} tokens cached"
    if event.turn is Turn.PREEMPTED:
        return f"{event.tokens} tokens to compute again"
    return f"at position {event.known}" if event.turn is Turn.STALLED else ""
