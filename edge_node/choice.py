"""One answer on its way: what of it is committed, what of that is final text, and when it ends.

Sans-IO. The pipeline tells it what cores say and when; it says what the client may see, and, when a
core is lost, whether the answer moves on to another one or ends with an error.
"""

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random

from firstlight.edge_node.answer import ChoiceStats, Event, Progress, TokenText, TtftParts
from firstlight.shared.blocks import block_hashes, root_hash
from firstlight.shared.errors import PeerError, RequestError
from firstlight.shared.retry import Attempts, Decision, Life, RetryBudget
from firstlight.shared.stream import CREDIT_TOKENS, TokenStream, ending
from firstlight.shared.text.detokenizer import Detokenizer
from firstlight.shared.types import (
    Commit,
    Done,
    Failed,
    FinishReason,
    HintCount,
    Request,
    Route,
    TokenLogprobs,
)

CREDIT_STEP_TOKENS = 64
"""Credit is renewed in steps of this, not for each id."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a choice runs, as of one epoch."""

    core: str
    region: str
    numerics_class: str
    network_ms: float
    """Round trip to the core when the choice was opened there."""
    prefix_tokens: int = 0
    """Prompt tokens that the core was expected to have cached."""
    ttft_ms: float = 0.0
    """Time to the first token that was expected of the core."""
    incarnation: int = 0
    """Of the core: which of its lives."""
    route: Route = field(default_factory=lambda: Route(()))
    """Why it was chosen, and who stood behind it; the best few."""


class Choice:
    """The state of one choice, from its first assignment to its ending."""

    def __init__(
        self,
        request: Request,
        *,
        index: int,
        stop: tuple[str, ...],
        token_bytes: Callable[[int], bytes],
        received_s: float,
        committed: tuple[int, ...] = (),
        has: int | None = None,
        numerics_class: str | None = None,
        session: bytes = b"",
    ) -> None:
        """`committed`: ids known already, by cores of `numerics_class`. The client has the first
        `has` ids of the answer with their text: those that are committed, if it is not told.
        """
        self.request = request
        self.session = session
        self.index = index
        self.stream = TokenStream(request.prompt, committed)
        self.assignment: Assignment | None = None
        self.finish: FinishReason | None = None
        self.stats = ChoiceStats()
        self.numerics_class = numerics_class
        """Of the core that committed last; None before the first id."""
        self.tried: set[str] = set()
        """Cores that failed this choice; tried again only if no other is left."""
        root = root_hash(tokenizer_hash=request.tokenizer_hash, salt=request.salt)
        self.block_hashes = block_hashes(root, request.prompt)
        self._stop = stop
        self._token_bytes = token_bytes
        self._received_s = received_s
        self._first_s = self._last_s = received_s
        self._committed_in_epoch = False
        self._attempts = Attempts()
        self._was_lost = False
        self._held: deque[TokenText] = deque()
        """With logprobs: ids whose text is not fully sent."""
        self._released = len(committed)
        self._credit = 0
        self._hints_before: dict[str, HintCount] = {}
        self._had_ids = len(committed)
        self.backlog = self.tell_from(len(committed) if has is None else has)
        """What is committed already, and not with the client; empty if nothing."""
        self.stats = replace(
            self.stats, completion_tokens=self._count, numerics_class=self.numerics_class or ""
        )

    def tell_from(self, has: int) -> Event:
        """Begin again for a client with the first `has` ids: all that it lacks, but for logprobs.

        `has` may be more than is committed: what comes up to there will not be told either.
        """
        self._detokenizer = Detokenizer(self._token_bytes, self._stop)
        self.finish = None
        self._cut = False
        self._count = 0
        """Ids of the answer so far."""
        self._offset = 0
        self._has = has
        self._had = getincrementaldecoder("utf-8")("replace")
        """Spells the ids that the client has."""
        self._had_chars = 0
        """Of the text to come, what the client has already."""
        self._taken = len(self.request.prompt) + has
        self._credit = max(self._credit, self._taken + CREDIT_TOKENS)
        text = ""
        for token in self.stream.ids:
            if self.finish is None:
                text += self._push(token, None)
        return Event(self.index, text, tuple(self.stream.ids[has : self._count]), self._offset)

    def progress(self, start: int = 0) -> Progress:
        """The ids from the `start`-th on; those behind the ending are none of the answer's."""
        ids = tuple(self.stream.ids[start : self._count])
        return Progress(ids, self.finish, self.numerics_class or "")

    @property
    def had(self) -> int:
        """Ids that its client, or the latest one, had to begin with."""
        return self._has

    @property
    def behind(self) -> bool:
        """Whether the client has ids that are not committed here, so only the class that committed
        them may go on."""
        return self._count < self._has

    def assign(self, assignment: Assignment) -> int:
        """Give the choice to a core; returns the epoch of that assignment."""
        if self._was_lost:
            self._was_lost = False
            self.stats = replace(self.stats, moved=self.stats.moved + 1)
        self.assignment = assignment
        self._committed_in_epoch = False
        self._hints_before = dict(self.stats.hints)
        self.stats = replace(
            self.stats,
            core=assignment.core,
            region=assignment.region,
            numerics_class=assignment.numerics_class,
        )
        return self.stream.assign()

    def commit(self, commit: Commit, now: float) -> Event | None:
        """What the client may see of it; None if there is nothing new. Raises `PeerError`."""
        if self.finish:
            return None
        self._check_ids(commit)
        fresh = self.stream.receive(commit)
        if not fresh:
            return None
        if self._count == self._had_ids:
            self._first(commit, now)
        if not self._committed_in_epoch:
            self._begin_epoch()
        self._attempts.committed()
        self._last_s = now
        logprobs = commit.logprobs[len(commit.ids) - len(fresh) :]
        text, ids = "", []
        for i, token in enumerate(fresh):
            text += self._push(token, logprobs[i] if logprobs else None)
            if self._count > self._has:
                ids.append(token)
            if self.finish:
                break
        tpot_ms = (self._last_s - self._first_s) * 1e3 / max(1, self._count - self._had_ids - 1)
        self.stats = replace(self.stats, completion_tokens=self._count, tpot_ms=tpot_ms)
        return Event(
            index=self.index,
            text=text,
            ids=tuple(ids),
            offset=self._offset,
            tokens=self._release(),
            finish=self.finish,
        )

    def ending(self) -> Event:
        """The event that ends the choice, once its content is out."""
        return Event(index=self.index, offset=self._offset, finish=self.finish)

    def take(self, event: Event) -> int | None:
        """The client took `event`; returns a new absolute credit when one is due."""
        self._taken += len(event.ids)
        due = self._taken + CREDIT_TOKENS
        if self.finish or due < self._credit + CREDIT_STEP_TOKENS:
            return None
        self._credit = due
        return due

    @property
    def core_goes_on(self) -> bool:
        """Whether only we know that the choice has ended: a core sees ids, not stop strings."""
        return self._cut

    @property
    def credit(self) -> int:
        """The absolute position up to which a core may commit."""
        return self._credit

    @property
    def credit_raised(self) -> bool:
        """Whether it is above what a core grants by itself to a request that it opens."""
        return self._credit > len(self.request.prompt) + CREDIT_TOKENS

    @property
    def wall_s(self) -> float:
        """From the request's first byte to its last id."""
        return self._last_s - self._received_s

    def done(self, done: Done) -> None:
        """Count what became of the hints, on top of what earlier cores said."""
        totals = dict(self._hints_before)
        for source, count in done.hints:
            totals[source] = totals.get(source, HintCount()) + count
        self.stats = replace(self.stats, hints=totals)

    def lost(
        self, now: float, rng: Random, *, died: bool, living: Collection[Life] = ()
    ) -> Decision:
        """The core is gone, or handed the choice over: whether it goes on elsewhere.

        Only a core that `died` before it committed an id here is a strike against the request, and
        only as long as it is not among the `living`.
        """
        self._was_lost = True
        core, strike = self._mark_tried(), None
        if died and not self._committed_in_epoch and self.assignment is not None:
            strike = (core, self.assignment.incarnation)
        return self._attempts.lost(core, strike=strike, living=living, now=now, rng=rng)

    def refused(self, failed: Failed, budget: RetryBudget, now: float, rng: Random) -> Decision:
        """The core lives, and gave the choice up: whether it goes on elsewhere."""
        return self._attempts.refused(
            self._mark_tried(),
            retry_elsewhere=failed.retry_elsewhere,
            budget=budget,
            now=now,
            rng=rng,
        )

    def _check_ids(self, commit: Commit) -> None:
        """Before anything is taken in: an id without text here would be passed on to other cores,
        which would refuse the whole request for it."""
        alternatives = (token for item in commit.logprobs for token, _ in item.top)
        try:
            for token in chain(commit.ids, alternatives):
                self._token_bytes(token)
        except RequestError as error:
            raise PeerError(f"commit at position {commit.position}: {error.message}") from None

    def _begin_epoch(self) -> None:
        self._committed_in_epoch = True
        assert self.assignment is not None
        before, self.numerics_class = self.numerics_class, self.assignment.numerics_class
        if before not in (None, self.numerics_class):
            self.stats = replace(self.stats, continuation="semantic")

    def _first(self, commit: Commit, now: float) -> None:
        self._first_s = now
        total = (now - self._received_s) * 1e3
        queue, prefill = commit.queue_ms or 0.0, commit.prefill_ms or 0.0
        expected = self.assignment.network_ms if self.assignment else 0.0
        network = min(
            expected, max(0.0, total - queue - prefill)
        )  # of many round trips, not of this
        parts = TtftParts(
            total=total,
            network=network,
            queue=queue,
            prefill=prefill,
            first_packet=max(0.0, total - network - queue - prefill),
        )
        self.stats = replace(self.stats, ttft_ms=parts, cached_tokens=commit.cached_tokens or 0)

    def _unseen(self, token: int, text: str) -> str:
        """What of the text, which became final with `token`, the client has not."""
        if self._count <= self._has:
            last = self._count == self._has or self.finish is not None
            had = self._had.decode(self._token_bytes(token), final=last)
            self._had_chars += len(had) - len(text)
            return ""
        had_chars = min(max(0, self._had_chars), len(text))
        self._had_chars -= had_chars
        return text[had_chars:]

    def _push(self, token: int, logprobs: TokenLogprobs | None) -> str:
        """Take one id in; returns the text that is final with it, and not with the client."""
        request = self.request
        piece = self._detokenizer.push(token)
        self._count = count = self._count + 1
        if logprobs is not None and token not in request.eos_ids:
            self._held.append(TokenText(token, self._token_bytes(token), logprobs))
        self.finish = ending(
            token,
            generated=count,
            max_tokens=request.max_tokens,
            eos_ids=request.eos_ids,
            stopped=piece.stopped,
        )
        text = piece.text
        if self.finish and not piece.stopped:
            piece = self._detokenizer.finish()
            text += piece.text
            if piece.stopped:
                self.finish = FinishReason.STOP
        self._cut = piece.stopped and token not in request.eos_ids and count < request.max_tokens
        self._offset = piece.offset
        return self._unseen(token, text) if self._has else text

    def _release(self) -> tuple[TokenText, ...]:
        """The ids whose text is fully sent; at the end, those of which any text was kept."""
        ready = []
        while self._held and self._released < self._offset:
            ready.append(self._held.popleft())
            self._released += 1
        return tuple(ready)

    def _mark_tried(self) -> str:
        core = self.assignment.core if self.assignment is not None else ""
        self.tried.add(core)
        return core
