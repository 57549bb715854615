"""How much work arrives at this edge: averages of the last 10 s, for load balancers. Sans-IO.

Counted when a request comes, before anything is decided about it: what is refused is work too, and
nothing that is decided by these figures feeds back into them. How long its answer will be is not
known then; answers that ended lately say what to expect.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from firstlight.shared.errors import CapacityError, FirstlightError
from firstlight.shared.routing.work import work
from firstlight.shared.types import Demand, Request

WINDOW_S = 10.0
BUCKETS = 11
"""Of a second each: ten whole ones, and the one that runs."""
ANSWER_TOKENS_PRIOR = 128.0
LEARN = 0.02
"""How much one answer changes what is expected of the next."""


@dataclass(slots=True)
class _Second:
    began_at: float
    requests: int = 0
    prompt_tokens: int = 0
    answer_tokens: float = 0.0
    """Expected."""
    refused_prompt_tokens: int = 0
    refused_answer_tokens: float = 0.0
    output_tokens: int = 0


class Arrivals:
    """What came in the last seconds. Reading changes nothing."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._seconds: deque[_Second] = deque(maxlen=BUCKETS)
        self._answer_tokens = ANSWER_TOKENS_PRIOR

    def arrived(self, requests: Iterable[Request], now: float) -> None:
        """These came."""
        second = self._second(now)
        for request in requests:
            second.requests += 1
            second.prompt_tokens += len(request.prompt)
            second.answer_tokens += self._expected(request)

    def failed(self, request: Request, error: FirstlightError, now: float) -> None:
        """One of them has failed: refused work, if it was for want of room."""
        if isinstance(error, CapacityError):
            second = self._second(now)
            second.refused_prompt_tokens += len(request.prompt)
            second.refused_answer_tokens += self._expected(request)

    def committed(self, tokens: int, now: float) -> None:
        """Ids of answers came from a core."""
        self._second(now).output_tokens += tokens

    def answered(self, tokens: int) -> None:
        """An answer has ended with so many ids."""
        self._answer_tokens += LEARN * (tokens - self._answer_tokens)

    def demand(self, now: float, *, weight: float) -> Demand:
        """Averages over the window, or over this edge's life if that is shorter (1 s at least).

        `weight`: of an answer's token, in prompt tokens.
        """
        over_s = min(WINDOW_S, max(1.0, now - self._since))
        lately = [second for second in self._seconds if now - second.began_at <= WINDOW_S]
        prompts = sum(second.prompt_tokens for second in lately)
        answers = sum(second.answer_tokens for second in lately)
        refused = sum(second.refused_prompt_tokens for second in lately)
        unanswered = sum(second.refused_answer_tokens for second in lately)
        return Demand(
            work_per_s=work(prompts, answers, weight=weight) / over_s if prompts else 0.0,
            refused_per_s=work(refused, unanswered, weight=weight) / over_s if refused else 0.0,
            prompt_tokens_per_s=prompts / over_s,
            output_tokens_per_s=sum(second.output_tokens for second in lately) / over_s,
            requests_per_s=sum(second.requests for second in lately) / over_s,
        )

    def _expected(self, request: Request) -> float:
        return min(self._answer_tokens, request.max_tokens)

    def _second(self, now: float) -> _Second:
        if not self._seconds or now - self._seconds[-1].began_at >= 1.0:
            self._seconds.append(_Second(now))
        return self._seconds[-1]
