"""One answer in the making: its ids, how many of them are computed, and which blocks hold them."""

from collections.abc import Iterable
from dataclasses import dataclass

from firstlight.shared.blocks import BLOCK_TOKENS, block_hashes, next_hash, root_hash
from firstlight.shared.engine.kv.manager import Loading, Parked
from firstlight.shared.errors import SlowClientError
from firstlight.shared.sampling import Draw, History
from firstlight.shared.types import Request


@dataclass(frozen=True, slots=True)
class Counted:
    """A sequence of which only the length matters, and which blocks its prompt is made of."""

    prompt_tokens: int
    known: int
    hashes: tuple[bytes, ...]


class Sequence:
    """There are no phases: `computed` catches up with `known`, and at `known` an id is sampled."""

    def __init__(
        self,
        request: Request,
        *,
        epoch: int,
        committed: tuple[int, ...],
        credit: int,
        now: float,
        prefill_only: bool = False,
        counted: Counted | None = None,
    ) -> None:
        """`counted`: how long it is, where its ids are of no matter; it has none then."""
        self.request, self.id = request, request.id
        self.prefill_only = prefill_only
        """It ends when its known ids are computed."""
        self.epoch = epoch
        self.ids = [*request.prompt, *committed]
        self.history = History(request.prompt, committed)
        self.credit = credit
        """Ids may be committed at positions below it."""
        self.computed = 0
        """Tokens whose KV is in the pool."""
        self.table: list[int] = []
        self.published = 0
        """Leading blocks of the table that the prefix index knows."""
        self.loading: Loading | None = None
        """Blocks of its prefix that are on their way here."""
        self.parked: Parked | None = None
        """What it had computed when it lost its place, while it waits."""
        self._root = root_hash(tokenizer_hash=request.tokenizer_hash, salt=request.salt)
        counted = counted or Counted(
            len(request.prompt), len(self.ids), tuple(block_hashes(self._root, self.ids))
        )
        self.prompt_tokens, self.hashes = counted.prompt_tokens, list(counted.hashes)
        self.known = counted.known  # prompt and committed ids: the position of the next one
        self.arrived_s = now
        self.deadline_s = now + request.budget_s
        self.due_s = self.deadline_s
        """When its first id is due by the SLA of its class; the scheduler knows that."""
        self.preempted = 0
        """How often it lost its place."""
        self.queued_since_s: float | None = now
        """None while it runs."""
        self.standing: tuple[int, int, int, int, float] | None = None  # its importance, if it runs
        self.waited_s = 0.0
        """Time in the queue before that."""
        self.stalled_since_s: float | None = None
        self.first_step_s: float | None = None
        self.cached_tokens: int | None = None
        self.reported = False
        """Whether the first outcome is out."""
        self.uncached_tokens = self.known
        """Expected prefill when it was queued."""

    @property
    def generated(self) -> int:
        """Ids after the prompt."""
        return self.known - self.prompt_tokens

    @property
    def behind(self) -> int:
        """Known tokens that are not computed, or will not be cached when it gets a place."""
        return (
            self.uncached_tokens if self.queued_since_s is not None else self.known - self.computed
        )

    @property
    def end(self) -> int:
        """The answer stays below this position."""
        return self.prompt_tokens + self.request.max_tokens

    @property
    def stalled(self) -> bool:
        """Whether the client has not made room for another id."""
        return self.known >= self.credit

    @property
    def draft_max(self) -> int:
        """Drafted ids that could be committed, with one id more, within limit and credit."""
        return max(0, min(self.end, self.credit) - self.known - 1)

    @property
    def reach(self) -> int:
        """Tokens that it has to compute itself, as far as that is known now."""
        if self.loading is None or not self.loading.slots:
            return self.known
        return self.loading.front * BLOCK_TOKENS

    def commit(self, ids: Iterable[int]) -> None:
        """Append ids; the caller accounts for `computed`."""
        for token in ids:
            self.ids.append(token)
            self.history.append(token)
            if len(self.ids) % BLOCK_TOKENS == 0:
                parent = self.hashes[-1] if self.hashes else self._root
                self.hashes.append(next_hash(parent, self.ids[-BLOCK_TOKENS:]))
        self.known = len(self.ids)

    def draws(self, drafted: tuple[int, ...]) -> tuple[Draw, ...]:
        """How to choose the id at `known`, and the ones after each drafted id."""
        request = self.request
        return tuple(
            Draw(
                request.sampling,
                request.seed,
                request.choice,
                self.known + ahead,
                self.history,
                drafted[:ahead],
            )
            for ahead in range(len(drafted) + 1)
        )

    def waiting_s(self, now: float) -> float:
        """All the time that it was queued."""
        return self.waited_s + (0.0 if self.queued_since_s is None else now - self.queued_since_s)

    def stall(self, now: float, timeout_s: float) -> SlowClientError | None:
        """Note whether it stands at its credit; the error once it has for `timeout_s`."""
        if not self.stalled:
            self.stalled_since_s = None
            return None
        if self.stalled_since_s is None:
            self.stalled_since_s = now
        if now - self.stalled_since_s < timeout_s:
            return None
        return SlowClientError(
            f"the client did not read for {timeout_s:g} s: answer stands at position {self.known}"
        )
