"""Whether a request whose core failed goes on elsewhere, when, and why not. The edge alone retries.

A *move* follows a core that was lost: it must not be refused for others' sake, or one dead core
would break all streams beyond the budget; at most 4 a minute a request. A *retry* follows a core
that said no: it makes load where there is too much already, so it is paid from a budget that the
whole edge shares (10 % of requests + 3 a second), at most 3 tries in a row, after a wait with full
jitter.

Poison: a request under which core after core dies is the likely cause. A strike counts only if the
core died before this request committed a token on it, so that an innocent stream on a core that is
killed again and again, but answers in between, goes on. A core that is silent, hangs, or lost the
request has not died: nothing says that this request did it, and no core has to be started again.
That a connection broke looks like a death; a strike is taken back if that life of the core is heard
when the next core is lost, or is itself lost again.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from firstlight.shared.estimate import DecayingSum

MOVES_MAX = 4
MOVES_WINDOW_S = 60.0
STRIKES_MAX = 2
TRIES_MAX = 3
BUDGET_SHARE = 0.10
BUDGET_PER_S = 3.0
BUDGET_HALF_LIFE_S = 10.0
BACKOFF_BASE_S = 0.05
BACKOFF_MAX_S = 2.0


Life = tuple[str, int]
"""A node, and its incarnation."""


class Why(StrEnum):
    """What decided."""

    MOVE = "move"
    RETRY = "retry"
    POISON = "poison"
    MOVES = "moves"
    TRIES = "tries"
    BUDGET = "budget"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Decision:
    """Go on elsewhere after `wait_s`, or end with an error."""

    go_on: bool
    why: Why
    reason: str
    wait_s: float = 0.0


def full_jitter_s(
    attempt: int, rng: Random, *, base_s: float = BACKOFF_BASE_S, max_s: float = BACKOFF_MAX_S
) -> float:
    """Uniform in [0, min(max, base · 2^attempt)], attempt 0 being the first wait."""
    return rng.uniform(0.0, min(max_s, base_s * float(2 ** min(attempt, 30))))


class RetryBudget:
    """What the retries of one edge are paid from: a share of its late requests, and a trickle.

    Neither is saved up: the trickle fills one second's worth, and what requests gave halves in
    10 s, so that a quiet hour buys no storm.
    """

    def __init__(
        self, now: float, *, share: float = BUDGET_SHARE, per_s: float = BUDGET_PER_S
    ) -> None:
        self._share = share
        self._per_s = per_s
        self._trickle = per_s
        self._earned = DecayingSum(BUDGET_HALF_LIFE_S)
        self._at = now

    def request(self, now: float) -> None:
        """A new request, not a retry, came in."""
        self._earned.add(self._share, now)

    def take(self, now: float) -> bool:
        """Pay for one retry, if there is enough."""
        elapsed_s = max(0.0, now - self._at)
        self._trickle = min(self._per_s, self._trickle + self._per_s * elapsed_s)
        self._at = max(now, self._at)
        from_trickle = min(1.0, self._trickle)
        if from_trickle + self._earned.value(now) < 1.0 - 1e-9:
            return False
        self._trickle -= from_trickle
        self._earned.add(from_trickle - 1.0, now)
        return True


class Attempts:
    """The failures of one request, and what they allow."""

    def __init__(self) -> None:
        self.moves = 0
        self._moved_at: deque[float] = deque(maxlen=MOVES_MAX)
        self._strikes: list[Life] = []
        self._tries = 1
        self._idle_moves = 0

    def committed(self) -> None:
        """The core that has the request now committed a token: it counts as served there."""
        self._tries = 1
        self._idle_moves = 0

    def lost(
        self,
        core: str,
        *,
        strike: Life | None,
        living: Collection[Life] = (),
        now: float,
        rng: Random,
    ) -> Decision:
        """The core is lost, or hands over.

        `strike`: the life of it that ended before it committed a token of this request; None if it
        had, or lives for all that is known. `living`: those that are heard now.
        """
        self._strikes = [one for one in self._strikes if one not in living and one != strike]
        if strike is not None:
            self._strikes.append(strike)
            if len(self._strikes) >= STRIKES_MAX:
                cores = " and ".join(name for name, _ in self._strikes)
                return Decision(False, Why.POISON, f"{cores} died before its first token there")
        if len(self._moved_at) == MOVES_MAX and now - self._moved_at[0] < MOVES_WINDOW_S:
            return Decision(False, Why.MOVES, f"moved {MOVES_MAX} times within a minute")
        self._moved_at.append(now)
        self.moves += 1
        wait_s = full_jitter_s(self._idle_moves - 1, rng) if self._idle_moves else 0.0
        self._idle_moves += 1
        return Decision(True, Why.MOVE, f"{core} was lost", wait_s)

    def refused(
        self,
        core: str,
        *,
        retry_elsewhere: bool,
        budget: RetryBudget,
        now: float,
        rng: Random,
    ) -> Decision:
        """The core lives and said that it will not, or cannot, serve the request."""
        if not retry_elsewhere:
            return Decision(False, Why.FINAL, f"{core} refused for good")
        if self._tries >= TRIES_MAX:
            return Decision(False, Why.TRIES, f"refused {TRIES_MAX} times, last by {core}")
        if not budget.take(now):
            return Decision(False, Why.BUDGET, "this edge's retry budget is used up")
        wait_s = full_jitter_s(self._tries - 1, rng)
        self._tries += 1
        return Decision(True, Why.RETRY, f"{core} refused", wait_s)
