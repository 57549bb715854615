"""One choice of an answer on the links: it receives what cores say of it, and is moved on when a
core is lost, refuses or drains.

It decides nothing: which core says the router, what an id does to the answer `choice`, whether to
go on `shared.retry`, what to draft `drafting`. Here that is done, on the loop.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol

from firstlight.edge_node import meter
from firstlight.edge_node.answer import Ask, Event
from firstlight.edge_node.arrivals import Arrivals
from firstlight.edge_node.choice import Assignment, Choice
from firstlight.edge_node.drafting import Drafting, Make
from firstlight.edge_node.history import ChoiceHistory
from firstlight.edge_node.route import CoreRouter
from firstlight.edge_node.timeline import words
from firstlight.edge_node.upstream.link import CoreLink
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import (
    CapacityError,
    DeadlineError,
    DiedError,
    ErrorKind,
    FirstlightError,
    PeerError,
    from_kind,
)
from firstlight.shared.history_file import History
from firstlight.shared.retry import Decision, RetryBudget, Why
from firstlight.shared.types import Commit, Done, Failed, Request

MOVE_RETRY_S = 0.1
MOVE_GIVE_UP_S = 10.0
"""How long a choice without a core waits for one to come back."""
STATISTICS_WAIT_S = 0.25
"""How long the end of an answer waits for the core's statistics; the text never waits."""


class Means(Protocol):
    """What all flights of an edge share."""

    region: str
    router: CoreRouter
    token_bytes: Callable[[int], bytes]
    rng: Random
    history: History | None
    drafters: Make
    retries: RetryBudget
    arrivals: Arrivals


class Listener(Protocol):
    """Whom a flight tells."""

    def push(self, event: Event, /) -> None:
        """Something for the client."""

    def fail(self, error: FirstlightError, /) -> None:
        """The answer cannot go on."""


class Flight:
    """A choice on its way. Links tell it `committed`, `done`, `failed` and `lost`."""

    def __init__(
        self, answer: Listener, means: Means, ask: Ask, request: Request, index: int
    ) -> None:
        committed = ask.committed[index] if ask.committed else ()
        self.choice = Choice(
            request,
            index=index,
            committed=committed,
            has=ask.has[index] if ask.has else None,
            numerics_class=ask.numerics_class,
            stop=ask.stop,
            token_bytes=means.token_bytes,
            received_s=ask.received_s,
            session=ask.session,
        )
        self._history: ChoiceHistory | None = None
        if means.history is not None:
            has = self.choice.had if ask.committed or ask.has else None
            self._history = ChoiceHistory(means.history, self.choice, has=has)
        self._loop = asyncio.get_running_loop()
        self._answer = answer
        self._means = means
        self._deadline_s = ask.received_s + ask.budget_s
        self._timeline = ask.timeline
        self._left = ""
        """Why the choice left the core before, until it is at the next one."""
        self._link: CoreLink | None = None
        self._drafting: Drafting | None = None
        if ask.hints:
            self._drafting = Drafting(means.drafters, request, self.choice.stream)
        self._timer: asyncio.TimerHandle | None = None
        self._landed = False

    def depart(self) -> None:
        """First assignment. Raises `CapacityError` when no core can take it.

        A choice that is resumed at its very end needs no core.
        """
        if self.choice.backlog.ids or self.choice.backlog.text:
            self._answer.push(self.choice.backlog)
        if self.choice.finish is not None:
            self._conclude()
            return
        try:
            self._open(monotonic_s())
        except FirstlightError as error:
            self._means.arrivals.failed(self.choice.request, error, monotonic_s())
            if self._history is not None:
                self._history.failed(error)
            raise

    def again(self, has: int) -> list[Event]:
        """All events so far, for another client, who has the first `has` ids."""
        told = [self.choice.tell_from(has)]
        if self._history is not None:
            self._history.rewound(has)
        if self._link is not None:
            self._link.credit(self.choice.request.id, self.choice.credit)
        if self._landed and self.choice.finish is not None:
            told.append(self.choice.ending())
        return told

    def land(self) -> None:
        """End the flight from our side."""
        if self._landed:
            return
        if self.choice.finish is None:
            self._note("cancelled", monotonic_s())
        if self._history is not None:
            self._history.landed()
        self._end()
        self._leave_core()

    def taken(self, event: Event) -> None:
        """The client took an event: let the core go on as far as that allows."""
        if self._history is not None:
            self._history.taken(event)
        credit = self.choice.take(event)
        if credit is not None and self._link is not None:
            self._link.credit(self.choice.request.id, credit)

    def committed(self, commit: Commit) -> None:
        """From the link: ids."""
        now = monotonic_s()
        try:
            event = self.choice.commit(commit, now)
        except PeerError as error:
            self._leave_core(failed=True)
            self._after_loss(error)
            return
        if self._history is not None:
            self._history.committed(commit)
        self._means.arrivals.committed(len(commit.ids), now)
        if event is None:
            return
        if event.finish is None:
            self._answer.push(event)
            if self._drafting is not None:
                self._drafting.committed()
        else:
            self._finish(event)
        if commit.cached_tokens is not None and self.choice.assignment is not None:
            self._note_first(commit, now)
            learn = partial(
                self._means.router.learn,
                self.choice.assignment,
                self.choice.block_hashes,
                cached_tokens=commit.cached_tokens,
                now=now,
            )
            self._loop.call_soon(self._loop.call_soon, learn)  # once the first text is out

    def done(self, done: Done) -> None:
        """From the link: statistics; the end of the answer waited for them."""
        if done.epoch == self.choice.stream.epoch:
            self._note("marks", monotonic_s(), epoch=done.epoch, marks=done.marks)
            self.choice.done(done)
            if self.choice.finish is not None:
                self._conclude()

    def failed(self, failed: Failed) -> None:
        """From the link: the core gave up on this epoch."""
        if failed.epoch != self.choice.stream.epoch or self.choice.finish is not None:
            return
        now = monotonic_s()
        self._note("marks", now, epoch=failed.epoch, marks=failed.marks)
        error = from_kind(failed.kind, failed.message, retry_after_s=failed.retry_after_s)
        if isinstance(error, DiedError):  # its engine failed: it is about to end
            self._leave_core()
            self._after_loss(error)
            return
        if failed.kind == ErrorKind.PEER:  # it drains
            self._leave_core()
            self._after_loss(error, how="handed over")
            return
        if failed.kind == ErrorKind.CAPACITY and self._link is not None:
            self._means.router.refused(self._link, now)
        self._leave_core()
        decision = self.choice.refused(failed, self._means.retries, now, self._means.rng)
        self._note_left("refused", decision, error)
        if decision.go_on:
            self._move_after(decision, error)
        else:
            self._give_up(error)

    def lost(self, core: str, error: FirstlightError) -> None:
        """From the link: it broke."""
        self._link = None
        self._draft_no_more()
        if self.choice.finish is not None:
            self._conclude()
        elif not self._landed:
            self._after_loss(error)

    def _after_loss(self, error: FirstlightError, *, how: str = "lost") -> None:
        died, living = isinstance(error, DiedError), self._means.router.living()
        decision = self.choice.lost(monotonic_s(), self._means.rng, died=died, living=living)
        self._note_left(how, decision, error)
        message = f"{error.message}; {decision.reason}"
        if decision.go_on:
            self._move_after(decision, error)
        elif decision.why is Why.POISON:  # not for a client to try again
            self._give_up(FirstlightError(message, code=decision.why))
        else:
            self._give_up(PeerError(message, code=decision.why))

    def _move_after(self, decision: Decision, cause: FirstlightError) -> None:
        meter.moved(decision.why)
        give_up_s = monotonic_s() + MOVE_GIVE_UP_S
        if decision.wait_s > 0:
            self._timer = self._loop.call_later(decision.wait_s, self._move, cause, give_up_s)
        else:
            self._move(cause, give_up_s)

    def _move(self, cause: FirstlightError, give_up_s: float) -> None:
        if self._landed:
            return
        now = monotonic_s()
        try:
            self._open(now)
        except CapacityError:
            if now >= give_up_s:
                self._give_up(cause)
            else:
                self._timer = self._loop.call_later(MOVE_RETRY_S, self._move, cause, give_up_s)
        except FirstlightError as error:
            self._give_up(error)

    def _open(self, now: float) -> None:
        request, choice = self.choice.request, self.choice
        left_s = self._deadline_s - now
        if left_s <= 0:
            raise DeadlineError(f"the request's time of {request.budget_s:g} s is over")
        before = choice.assignment
        with self._means.router.place(choice, now) as (link, assignment):
            if choice.behind and assignment.numerics_class != choice.numerics_class:
                raise CapacityError(
                    f"no core of class {choice.numerics_class} is free, and only there the text "
                    "would be the same: send firstlight.resume.ids",
                    code="resume_unknown",
                    retry_after_s=MOVE_GIVE_UP_S,
                )
            epoch = choice.assign(assignment)
            self._link = link
            link.open(request, epoch, choice.stream.ids, self, budget_s=left_s)
        if choice.credit_raised:
            link.credit(request.id, choice.credit)
        if self._drafting is not None:
            self._drafting.opened(link)
        self._note_opened(assignment, before, epoch, now)
        home = assignment.region == self._means.region
        self._loop.call_soon(partial(meter.routed, assignment, home=home))

    def _finish(self, event: Event) -> None:
        """The text goes out at once; the ending waits a moment for the core's statistics."""
        self._draft_no_more()
        self._answer.push(event.without_ending())
        self._note("last id", monotonic_s())
        if self._link is None:
            self._conclude()
            return
        if self.choice.core_goes_on:
            self._link.cancel(self.choice.request.id, self.choice.stream.epoch)
        self._timer = self._loop.call_later(STATISTICS_WAIT_S, self._conclude)

    def _conclude(self) -> None:
        if self._landed:
            return
        self._end()
        if self._link is not None:
            self._link.forget(self.choice.request.id)
            self._link = None
        choice = self.choice
        assert choice.finish is not None
        if self._history is not None:
            self._history.landed()
        self._note("ended", monotonic_s(), finish=str(choice.finish), stats=choice.stats)
        if choice.assignment is not None:
            self._means.arrivals.answered(choice.stats.completion_tokens)
            meter.ended(choice.request.model, choice.finish, choice.stats, choice.wall_s)
        self._answer.push(choice.ending())

    def _end(self) -> None:
        """Nothing that was put off is done any more."""
        self._landed = True
        self._draft_no_more()
        if self._timer is not None:
            self._timer.cancel()

    def _draft_no_more(self) -> None:
        if self._drafting is not None:
            self._drafting.stop()

    def _leave_core(self, *, failed: bool = False) -> None:
        self._draft_no_more()
        if self._link is not None:
            if failed:
                self._means.router.failed(self._link.info.node)
            self._link.cancel(self.choice.request.id, self.choice.stream.epoch)
            self._link.forget(self.choice.request.id)
            self._link = None

    def _give_up(self, error: FirstlightError) -> None:
        if not self._landed:
            self._means.arrivals.failed(self.choice.request, error, monotonic_s())
            self._timeline.fail(error, monotonic_s(), self.choice.index)
            if self._history is not None:
                self._history.failed(error)
            self._end()
            self._leave_core()
        self._answer.fail(error)

    def _note(self, what: str, now: float, **facts: object) -> None:
        """For the timeline: what is rare, and nothing for each id."""
        if self._history is not None:
            self._history.noted(what, facts)
        self._timeline.note(what, now, self.choice.index, **facts)

    def _note_first(self, commit: Commit, now: float) -> None:
        self._note(
            "first commit",
            now,
            epoch=commit.epoch,
            cached_tokens=commit.cached_tokens,
            queue_ms=commit.queue_ms,
            prefill_ms=commit.prefill_ms,
        )

    def _note_left(self, how: str, decision: Decision, error: FirstlightError) -> None:
        assert self.choice.assignment is not None
        core, self._left = self.choice.assignment.core, how
        reason = words(error)["message"] or error.kind.value
        facts = {"why": str(decision.why), "reason": reason, "wait_ms": decision.wait_s * 1e3}
        self._note("left", monotonic_s(), core=core, how=how, **facts)

    def _note_opened(
        self, assignment: Assignment, before: Assignment | None, epoch: int, now: float
    ) -> None:
        core = assignment.core
        self._note("routed", now, core=core, route=assignment.route)
        if before is not None:
            facts = {"from": before.core, "to": core, "why": self._left}
            self._note("moved", now, **facts)
        expected = {"expected_cached_tokens": assignment.prefix_tokens}
        measured = {"rtt_ms": assignment.network_ms, "committed": len(self.choice.stream.ids)}
        self._note("opened", now, core=core, epoch=epoch, **measured, **expected)
