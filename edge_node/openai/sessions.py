"""Requests that a client can come back to: who tells which choice now, and what is kept meanwhile.

    Call ─► Session ─► Turn (one connection, some choices) ─► Answer (what runs on the cores)

A choice has one teller. Whoever comes later takes over: the connection before it is ended, and only
when it has let go does the next one begin. What runs is handed on as it is, if the newcomer wants
exactly the same choices; else it is cancelled, and goes on from its ids as a new internal request.
A client that goes away leaves ids behind, and nothing that computes.
"""

import asyncio
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from firstlight.edge_node import meter
from firstlight.edge_node.answer import Answer, AnswerSource, Ask, ChoiceStats, Progress
from firstlight.edge_node.openai.objects import Dialect, Origin
from firstlight.edge_node.resume import RESUMED_IDS_MAX
from firstlight.edge_node.stream_log import IdempotencyKey, StreamLog, StreamsConfig
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import CapacityError, NotFoundError, RequestError
from firstlight.shared.types import FinishReason

_SWEEP_LATE_S = 0.5
"""What is due is forgotten at most about this much later, though nobody asks for anything."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When a stream says something. Seconds."""

    first_event_wait_s: float = 10.0
    """After this a stream's headers go out, whether or not anything came."""
    keep_alive_s: float = 10.0
    """Silence before a keep-alive; clients and what stands between give up after 15 and more."""


@dataclass(frozen=True, slots=True)
class Call:
    """Everything known before the mesh is asked."""

    source: AnswerSource
    ask: Ask
    dialect: Dialect
    origin: Origin
    seal: Callable[[Ask], str]
    """What a client can go on with at another edge."""
    stream: bool
    include_usage: bool
    pace: Pace


@dataclass(frozen=True, slots=True)
class Told:
    """A choice that nothing computes now."""

    ids: "array[int]"
    finish: FinishReason | None
    numerics_class: str
    stats: ChoiceStats


class Follower(Protocol):
    """The journal, as sessions see it."""

    def follow(self, session: "Session") -> None:
        """Write down how its choices go on, while anybody tells them."""
        ...


class Session:
    """One request. Made by `Sessions`."""

    __slots__ = ("_keeper", "_live", "_told", "_turns", "call", "key", "streams")

    def __init__(self, call: Call, key: IdempotencyKey | None, keeper: "Sessions") -> None:
        self.call, self.key = call, key
        self.streams: tuple[str, ...] = ()
        """An id a choice, once it was sent off; the same however often it is gone on with."""
        self._keeper = keeper
        self._turns: dict[int, Turn] = {}
        """Who tells each choice, or will when those before it have let go."""
        self._live: dict[tuple[int, ...], Answer] = {}
        self._told: dict[int, Told] = {}

    @property
    def ask(self) -> Ask:
        """What was asked."""
        return self.call.ask

    @property
    def tenant(self) -> str:
        """Who asked."""
        return self.call.ask.tenant

    @property
    def choices(self) -> int:
        """How many."""
        return len(self.call.ask.prompts) * self.call.ask.n

    @property
    def ids_kept(self) -> int:
        """Of prompts, and of choices that nothing computes."""
        prompts = sum(map(len, self.call.ask.prompts))
        return prompts + sum(len(told.ids) for told in self._told.values())

    @property
    def busy(self) -> bool:
        """Whether anybody tells any of it."""
        return bool(self._turns)

    @property
    def begins(self) -> dict[int, int]:
        """Ids of each choice that its client had when it asked: none, but on resume."""
        ask = self.call.ask
        had = ask.has or tuple(map(len, ask.committed)) or (0,) * self.choices
        return dict(enumerate(had))

    def progress(self, index: int, start: int = 0) -> Progress:
        """The ids of choice `index` from the `start`-th on, and its ending if it has one."""
        for choices, answer in self._live.items():
            if index in choices:
                return answer.progress(index, start)
        told = self._told.get(index)
        if told is None:
            return Progress((), None, "")
        return Progress(tuple(told.ids[start:]), told.finish, told.numerics_class)

    def check_tellable(self, choices: Iterable[int]) -> None:
        """Raise `RequestError` unless these choices can be told again."""
        if self.call.ask.sampling.logprobs is not None:
            raise RequestError(
                "this stream has logprobs, which are not kept: go on with firstlight.resume.ids, "
                "which brings them from there on",
                param="logprobs",
                code="logprobs_not_kept",
            )
        total = sum(len(self.progress(index).ids) for index in choices)
        if total > RESUMED_IDS_MAX:  # replayed on the event loop
            raise RequestError(
                f"{total} ids, at most {RESUMED_IDS_MAX} can be told again", code="stream_too_long"
            )

    def claim(self, has: Mapping[int, int]) -> "Turn":
        """Take over these choices, for a client that has this many ids of each."""
        turn = Turn(self, has)
        before: list[Turn] = []
        for index in turn.choices:
            owner = self._turns.get(index)
            if owner is not None and owner not in before:
                before += [owner, *owner.before]
                owner.displace()
            self._turns[index] = turn
        turn.before = [one for one in before if not one.left.is_set()]
        self._keeper.log.wake(self)
        return turn

    def answer_for(self, turn: "Turn") -> Answer:
        """What runs for these choices, or what is sent off now. Raises `FirstlightError`."""
        running = self._live.get(turn.choices)
        if running is not None:
            running.rewind(turn.has)
            return running
        answer = self.call.source.open(self._ask(turn) if self.streams else self.call.ask)
        self._live[turn.choices] = answer
        if not self.streams:
            self.streams = answer.streams
            self._keeper.log.sent_off(self)
        self._keeper.follow(self)
        return answer

    def stats_of(self, answer: Answer, index: int) -> ChoiceStats:
        """How choice `index` was served, over all that computed it."""
        before, now = self._told.get(index), answer.stats(index)
        if before is None:
            return now
        if before.finish is not None:
            return before.stats
        semantic = "semantic" in (before.stats.continuation, now.continuation)
        return replace(
            now,
            moved=before.stats.moved + now.moved,
            continuation="semantic" if semantic else "exact",
        )

    def leave(self, turn: "Turn") -> None:
        """The connection of this turn is done: what nobody wants to go on with is cancelled."""
        for index in turn.choices:
            if self._turns.get(index) is turn:
                del self._turns[index]
        heirs = {self._turns.get(index) for index in turn.choices}
        heir = heirs.pop() if len(heirs) == 1 else None
        if heir is None or heir.choices != turn.choices:
            self._keep(turn.choices)
        turn.left.set()
        if not self._turns:
            nothing = not any(told.ids or told.finish for told in self._told.values())
            self._keeper.rested(self, lost=turn.failed and nothing)

    def _keep(self, choices: tuple[int, ...]) -> None:
        answer = self._live.get(choices)
        if answer is None:
            return
        answer.close()  # first of all: its cores compute for others
        if self._keeper.log.holds(self):
            self._told |= {index: self._told_by(answer, index) for index in choices}
        del self._live[choices]

    def _told_by(self, answer: Answer, index: int) -> Told:
        progress = answer.progress(index)
        return Told(
            array("I", progress.ids),
            progress.finish,
            progress.numerics_class,
            self.stats_of(answer, index),
        )

    def _ask(self, turn: "Turn") -> Ask:
        """To go on from what is kept."""
        ask, count = self.call.ask, self.choices
        known = [self.progress(index).ids for index in range(count)]
        picked = [self._told[index] for index in turn.choices if index in self._told]
        # Of several classes none is right: whatever goes on then says that it is another.
        classes = {told.numerics_class for told in picked if told.ids and not told.finish}
        return replace(
            ask,
            committed=tuple(known),
            has=tuple(turn.has.get(index, 0) for index in range(count)),
            picked=turn.choices,
            numerics_class=",".join(sorted(classes)) or ask.numerics_class,
            received_s=monotonic_s(),
        )


class Turn:
    """One connection that tells choices of a session."""

    def __init__(self, session: Session, has: Mapping[int, int]) -> None:
        self.session = session
        self.has = has
        self.choices = tuple(sorted(has))
        self.work: asyncio.Future[None] | None = None
        """What tells; cancelled when another connection takes over."""
        self.before: list[Turn] = []
        """Those who must let go first."""
        self.left = asyncio.Event()
        self.displaced = False
        self.failed = False
        """Ended with an error, not because the client or a newcomer wanted it."""

    @property
    def free(self) -> bool:
        """Whether nobody must let go first."""
        return all(turn.left.is_set() for turn in self.before)

    async def begin(self) -> Answer:
        """The answer, once those before have let go. Raises `FirstlightError`."""
        for turn in self.before:
            await turn.left.wait()
        self.before = []
        return self.session.answer_for(self)

    def displace(self) -> None:
        """Another connection takes over."""
        self.displaced = True
        if self.work is not None:
            self.work.cancel()


class Sessions:
    """All of an edge: the shell around `stream_log`."""

    def __init__(self, config: StreamsConfig, journal: Follower | None = None) -> None:
        self.log: StreamLog[Session] = StreamLog(config)
        self._journal = journal
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, call: Call, key: IdempotencyKey | None) -> Session:
        """A new request. Raises `CapacityError` if its key could not be remembered."""
        session = Session(call, key, self)
        if not (call.stream or key):
            return session
        if not self.log.enter(session, monotonic_s()) and key is not None:
            raise CapacityError(
                "no room to remember another Idempotency-Key: later, or without it",
                retry_after_s=self.log.config.keep_s,
            )
        meter.streams_kept(self.log.streams, self.log.ids)
        return session

    def named(self, key: IdempotencyKey) -> Session | None:
        """The request of this key, if it is remembered. Raises `RequestError` for another body."""
        return self.log.named(key, monotonic_s())

    def find(self, tenant: str, stream: str) -> tuple[Session, int]:
        """The request and choice of a stream id. Raises the same `NotFoundError` for all others."""
        found = self.log.find(tenant, stream, monotonic_s())
        if found is None:
            raise NotFoundError(
                "no such stream here, or no longer: repeat the request with firstlight.resume",
                code="stream_not_found",
            )
        return found

    def follow(self, session: Session) -> None:
        """It was sent off."""
        if self._journal is not None and session.call.stream:
            self._journal.follow(session)

    def rested(self, session: Session, *, lost: bool) -> None:
        """Nobody is connected to it; `lost`: and nothing of it is worth keeping."""
        if lost:
            self.log.forget(session)
        else:
            self.log.rest(session, monotonic_s())
        self._sweep_later()

    def _sweep_later(self) -> None:
        now = monotonic_s()
        due_s = self.log.sweep(now)
        meter.streams_kept(self.log.streams, self.log.ids)
        if self._timer is None and due_s is not None:
            wait_s = due_s - now + _SWEEP_LATE_S
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        self._sweep_later()
