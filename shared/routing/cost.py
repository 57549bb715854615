"""What a core would cost a request: the time to its first token, in milliseconds.

    ttft = rtt + queued_prefill · t_prefill + (P − H·fade) · t_prefill + t_step(rif + 1) + penalty
    rif  = in flight as the core last said + opens of this link that it has not counted − ends since

P = prompt tokens, H = those of them that the core has cached. The unseen part is not multiplied by
the number of edges: that hurts. `fade = 1/(1 + k·excess)` lets the credit for a cached prefix
shrink as the core's load exceeds that of the others, so that one hot prompt does not swamp a core.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from firstlight.shared.types import Load

FADE = 4.0
"""k: at a load that exceeds the mean by 0.25 the credit for a cached prefix is half."""

PREFILL_PRIOR_MS = 1.0
"""A prompt token's time at a core that has measured none, if no other has either."""


@dataclass(frozen=True, slots=True)
class CoreState:
    """A core at the moment of a decision, as this edge knows it."""

    core: str
    region: str
    load: Load
    rtt_ms: float
    age_s: float = 0.0
    """Of `load`: the core's own word, by link or by a load balancer."""
    unseen_opens: int = 0
    """Opens that `load` does not count yet, less ends since; may be negative."""
    unseen_prompt_tokens: int = 0
    """Prompt tokens of those opens."""
    prefix_tokens: int = 0
    """Prompt tokens of this request that the core should have cached."""
    numerics_class: str = ""
    models: tuple[str, ...] = ()
    context_max: int = 0
    """0: not known."""
    ejected: bool = False
    """Breaker open: it failed lately."""
    penalty_ms: float = 0.0
    """Decaying, after a cheap refusal: a core that fails fast must not look fast."""

    @property
    def rif(self) -> int:
        """Requests in flight there."""
        return max(0, self.load.in_flight + self.unseen_opens)

    @property
    def load_share(self) -> float:
        """rif over the hard cap; 1 and more is full."""
        return self.rif / self.load.sequences_max

    @property
    def full(self) -> bool:
        """At the hard cap: the next request would be refused."""
        return self.rif >= self.load.sequences_max


def ttft_ms(
    state: CoreState,
    *,
    prompt_tokens: int,
    mean_load: float = 0.0,
    prefill_prior_ms: float = PREFILL_PRIOR_MS,
) -> float:
    """Expected time to the first token, ms. `mean_load`: of `load_share` over the candidates."""
    assert prompt_tokens > 0, prompt_tokens
    load = state.load
    prefill_ms = load.prefill_ms_per_token or prefill_prior_ms
    rif = max(0, load.running + load.queued + state.unseen_opens)
    cached = 0.0
    if state.prefix_tokens:
        excess = max(0.0, rif / load.sequences_max - mean_load)
        cached = min(state.prefix_tokens, prompt_tokens - 1) / (1.0 + FADE * excess)
    waiting = load.queued_prefill_tokens + max(0, state.unseen_prompt_tokens)
    return (
        state.rtt_ms
        + (waiting + prompt_tokens - cached) * prefill_ms
        + step_ms(load.step_ms, rif + 1)
        + state.penalty_ms
    )


def step_ms(table: Sequence[tuple[int, float]], rows: int) -> float:
    """Time of a step of `rows` rows: linear between measured rows, the last slope beyond them.

    An empty table gives 0: nothing is known, so nothing is added.
    """
    if not table:
        return 0.0
    below = table[0]
    if rows <= below[0]:
        return below[1]
    slope = 0.0
    for above in table[1:]:
        if above[0] > below[0]:
            slope = max(0.0, (above[1] - below[1]) / (above[0] - below[0]))
        if rows <= above[0]:
            break
        below = above
    return below[1] + slope * (rows - below[0])


def known_prefill_ms(states: Sequence[CoreState]) -> float:
    """The median of what cores have measured: the prior for one that has measured nothing yet."""
    known = sorted(s.load.prefill_ms_per_token for s in states if s.load.prefill_ms_per_token > 0)
    return known[len(known) // 2] if known else PREFILL_PRIOR_MS
