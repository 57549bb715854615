"""How long a client goes on asking for one answer, and when it asks again.

Sans-IO. What a request costs its edges is bounded by what came of it: attempts that bring nothing
are counted, with a pause between once every edge was asked; those that bring something begin anew,
up to a number that no answer should need.
"""

from dataclasses import dataclass
from random import Random

from firstlight.shared.retry import full_jitter_s

IDLE_ATTEMPTS_MAX = 6
"""Further attempts after the last one that brought something."""
ATTEMPTS_MAX = 16
WITHOUT_PROGRESS_MAX_S = 30.0
PAUSE_BASE_S, PAUSE_MAX_S = 0.5, 4.0


@dataclass(frozen=True, slots=True)
class Next:
    """Ask again after `wait_s`, or give up."""

    go_on: bool
    reason: str
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an answer stands when its connection is lost."""

    begun: bool
    """Something of it was told on."""
    can_resume: bool
    """The rest can be asked for."""
    repeatable: bool
    """Asking twice does no harm."""
    edges: int
    """How many there are to ask."""


class Patience:
    """Of one request."""

    def __init__(self, now: float, rng: Random) -> None:
        self.attempts = 1
        self._idle, self._progress_at_s, self._rng = 0, now, rng

    def progress(self, now: float) -> None:
        """Something came."""
        self._idle, self._progress_at_s = 0, now

    def lost(self, where: Standing, now: float) -> Next:
        """The connection is lost, or could not be made."""
        refusal = self._refusal(where, now)
        if refusal is not None:
            return Next(False, refusal)
        # Each edge is asked once at once; from then on there is time between.
        rounds = self._idle + 1 - (where.edges - 1)
        self.attempts += 1
        self._idle += 1
        if rounds <= 0:
            return Next(True, "another edge may have it")
        pause_s = full_jitter_s(rounds - 1, self._rng, base_s=PAUSE_BASE_S, max_s=PAUSE_MAX_S)
        return Next(True, "every edge was asked a moment ago", pause_s)

    def _refusal(self, where: Standing, now: float) -> str | None:
        if where.begun and not where.can_resume:
            return "what came of it cannot be gone on with"
        if not where.begun and not where.repeatable:
            return "it may have been done already, and must not be done twice"
        if not where.begun and where.edges < 2:
            return "there is no other edge to ask"
        if self._idle >= IDLE_ATTEMPTS_MAX:
            return f"{self._idle} further attempts brought nothing"
        if self.attempts >= ATTEMPTS_MAX:
            return f"it was asked for {self.attempts} times"
        idle_s = now - self._progress_at_s
        if idle_s > WITHOUT_PROGRESS_MAX_S:
            return f"nothing came for {idle_s:.0f} s"
        return None
