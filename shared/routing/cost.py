"""What a core would cost a request: the time to its first token, in milliseconds.

    ttft = rtt + (queued + prefix)/share + t_step(rif + 1) + penalty
    prefix = min(recompute, fetch, split)      recompute = T(H·fade, P)
    T(a, b) = token_ms · (b − a) + pair_ms · Σ positions from a to b
    rif  = in flight as the core last said + opens of this link that it has not counted − ends since

P = prompt tokens, H = those of them that the core has cached; what a KV store near it could give
beyond them is weighed by `fetch`. The unseen part of rif is not multiplied by the number of edges:
that hurts. `fade = 1/(1 + k·excess)` lets the credit for a cached prefix shrink as the core's load
exceeds that of the others, so that one hot prompt does not swamp a core; where a prefix is hot it
ends at a bound, so that other cores come to have it too.

What a prompt token costs depends on its position. So cores say two rates, what those that wait will
take by them, and which share of a step prefill gets beside their decodes. Where one says none of
that, the mean of what it computed lately stands for all tokens; it is high behind a long prompt.

A figure that cannot be (NaN, negative, absurd) is taken as not known, and the core as doubtful.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from firstlight.shared.blocks import BLOCK_TOKENS
from firstlight.shared.routing.fetch import Source, Way, plan_prefix
from firstlight.shared.types import Cost, Load

FADE = 4.0
"""k: at a load that exceeds the mean by 0.25 the credit for a cached prefix is half."""
BOUND = 1.25
"""c of consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016)."""

PREFILL_PRIOR_MS = 1.0
"""A prompt token's time at a core that has measured none, if no other has either."""
PREFILL_MS_MIN, PREFILL_MS_MAX = 1e-4, 1e4
"""What a prompt token can take: ten million a second, to one in ten seconds."""
SHARE_MIN = 0.05
"""Of a step's time; a core that gives prefill less says what cannot be."""
RTT_PRIOR_MS = 50.0
RTT_MS_MAX = 60_000.0
AMOUNT_MAX = 1 << 30
"""Of tokens, of ms: more is nonsense."""
SEQUENCES_MAX = 1 << 16
KV_SHARE_MAX = 2.0
RECOMPUTE = Way.RECOMPUTE.value


class Standing(NamedTuple):
    """What a core's word comes to, whatever the request: worked out once a word, when it is first
    weighed, and most of what weighing takes."""

    share: float
    """rif over the hard cap."""
    rtt_ms: float
    queue_ms: float
    step_ms: float
    penalty_ms: float
    token_ms: float
    pair_ms: float
    prefill_share: float
    """Of its steps' time, beside those who decode."""
    measured: bool
    """Whether the core says what a prompt token takes it; else these figures have our prior."""


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
    numerics_class: str = ""
    models: tuple[str, ...] = ()
    context_max: int = 0
    """0: not known."""
    ejected: bool = False
    """Breaker open: it failed lately."""
    penalty_ms: float = 0.0
    """Decaying, after a cheap refusal: a core that fails fast must not look fast."""
    grown: float = 1.0
    """Share of its room that is used yet, after it was ejected: slow start."""
    near_tokens: int = 0
    """Prompt tokens that a KV store near it could give."""
    near: Source | None = None
    """What getting them would take; None: there is none."""
    standing: Standing | None = field(default=None, init=False, repr=False, compare=False)
    """Kept by the first that weighs the core."""

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


def cost_of(
    state: CoreState,
    *,
    prompt_tokens: int,
    prefix_tokens: int = 0,
    mean_load: float = 0.0,
    prefill_prior_ms: float = PREFILL_PRIOR_MS,
    bounded: bool = False,
) -> Cost:
    """The expected time to the first token. `mean_load`: of `load_share` over the candidates.

    `prefix_tokens`: of the prompt, cached there. `bounded`: there is no credit for them where the
    load is above 1.25 · mean.
    """
    return Cost(
        *parts_of(state, prompt_tokens, prefix_tokens, mean_load, prefill_prior_ms, bounded)
    )


Parts = tuple[float, float, float, float, float, str]
"""The fields of a `Cost`, in their order. Of most cores that are weighed only the sum is asked."""


def parts_of(
    state: CoreState,
    prompt_tokens: int,
    prefix_tokens: int,
    mean_load: float,
    prefill_prior_ms: float,
    bounded: bool,
) -> Parts:
    """What `cost_of` is made of, from `Standing` and what the request brings."""
    assert prompt_tokens > 0, prompt_tokens
    standing = state.standing or standing_of(state)
    if not standing.measured:
        standing = _stand(state, prefill_prior_ms)
    share, rtt_ms, queue_ms, next_ms, penalty_ms, token_ms, pair_ms, prefill_share, _ = standing
    cached = credit = 0.0
    if prefix_tokens > 0:
        cached = min(prefix_tokens, prompt_tokens - 1)
        credit = cached / (1.0 + FADE * (share - mean_load)) if share > mean_load else cached
        if bounded and share > BOUND * mean_load:
            credit = 0.0
    prefill_ms, way = span_ms(token_ms, pair_ms, credit, prompt_tokens), RECOMPUTE
    if state.near is not None and _possible(state.near):
        blocks = max(0, int(min(state.near_tokens, prompt_tokens - 1) - cached) // BLOCK_TOKENS)
        given = cached + blocks * BLOCK_TOKENS
        block_ms = span_ms(token_ms, pair_ms, cached, given) / max(1, blocks)
        plan = plan_prefix(blocks, block_ms, state.near)
        if plan.way is not Way.RECOMPUTE:
            prefill_ms = plan.ms + span_ms(token_ms, pair_ms, given, prompt_tokens)
            way = plan.way.value
    return rtt_ms, queue_ms, prefill_ms / prefill_share, next_ms, penalty_ms, way


def standing_of(state: CoreState) -> Standing:
    """What the core's word comes to; kept with the word."""
    standing = state.standing
    if standing is None:
        standing = _stand(state, PREFILL_PRIOR_MS)
        object.__setattr__(state, "standing", standing)
    return standing


def _stand(state: CoreState, prior_ms: float) -> Standing:
    """`prior_ms`: of a prompt token, if the core has measured none. The mean of what it computed
    lately is no rate: it is high behind a long prompt."""
    load, opens, share = state.load, state.unseen_opens, state.load.prefill_share
    rif = max(0, load.running + load.queued + opens)
    if not SHARE_MIN <= share <= 1.0:
        share = 1.0
    token_ms, pair_ms, queue_ms = load.prefill_token_ms, load.prefill_pair_ms, 0.0
    measured = PREFILL_MS_MIN <= token_ms <= PREFILL_MS_MAX and 0.0 <= pair_ms <= PREFILL_MS_MAX
    if measured:
        queue_ms = load.queued_prefill_ms
    else:
        token_ms, pair_ms = load.prefill_ms_per_token, 0.0
        measured = PREFILL_MS_MIN <= token_ms <= PREFILL_MS_MAX
        token_ms = token_ms if measured else prior_ms
    if not 0.0 < queue_ms <= AMOUNT_MAX:
        queue_ms = load.queued_prefill_tokens * token_ms
        if not 0 <= load.queued_prefill_tokens <= AMOUNT_MAX:
            queue_ms = 0.0
    if state.unseen_prompt_tokens > 0:
        opens = max(1, opens)
        queue_ms += opens * span_ms(token_ms, pair_ms, 0, state.unseen_prompt_tokens / opens)
    rtt_ms, next_ms, penalty_ms = state.rtt_ms, step_ms(load.step_ms, rif + 1), state.penalty_ms
    return Standing(
        rif / (load.sequences_max if load.sequences_max > 0 else 1),
        rtt_ms if 0.0 <= rtt_ms <= RTT_MS_MAX else RTT_PRIOR_MS,
        queue_ms / share,
        next_ms if 0.0 <= next_ms <= AMOUNT_MAX else 0.0,
        penalty_ms if 0.0 <= penalty_ms <= AMOUNT_MAX else 0.0,
        token_ms,
        pair_ms,
        share,
        measured,
    )


def span_ms(token_ms: float, pair_ms: float, begin: float, end: float) -> float:
    """Of the tokens of a prompt from `begin` to `end`, if all steps' time were theirs."""
    count = end - begin
    return token_ms * count + pair_ms * count * (begin + (count + 1) / 2)


def nonsense(state: CoreState) -> str:
    """The first figure of a core's that cannot be, in words; empty: all can."""
    if not 0.0 <= state.rtt_ms <= RTT_MS_MAX:
        return f"round trip {state.rtt_ms} ms"
    if not 0.0 <= state.penalty_ms <= AMOUNT_MAX:
        return f"penalty {state.penalty_ms} ms"
    if state.near is not None and not _possible(state.near):
        return f"KV store near it in {state.near.wait_ms} + {state.near.block_ms} ms a block"
    return nonsense_load(state.load)


def nonsense_load(load: Load) -> str:
    """What of a load cannot be; empty if all of it may be so."""
    if not 1 <= load.sequences_max <= SEQUENCES_MAX:
        return f"room for {load.sequences_max}"
    if not (0 <= load.running <= AMOUNT_MAX and 0 <= load.queued <= AMOUNT_MAX):
        return f"{load.running} running, {load.queued} queued"
    if not 0 <= load.queued_prefill_tokens <= AMOUNT_MAX:
        return f"{load.queued_prefill_tokens} tokens queued"
    if not 0.0 <= load.kv_used_share <= KV_SHARE_MAX:
        return f"KV {load.kv_used_share}"
    prefill_ms = load.prefill_ms_per_token
    if prefill_ms != 0.0 and not PREFILL_MS_MIN <= prefill_ms <= PREFILL_MS_MAX:
        return f"{prefill_ms} ms a prompt token"
    if not (0.0 <= load.queued_prefill_ms <= AMOUNT_MAX and 0.0 <= load.prefill_share <= 1.0):
        return f"{load.queued_prefill_ms} ms queued, prefill's share {load.prefill_share}"
    if not (0.0 <= load.prefill_token_ms <= PREFILL_MS_MAX >= load.prefill_pair_ms >= 0.0):
        return f"{load.prefill_token_ms} ms a prompt token, {load.prefill_pair_ms} a pair"
    for rows, ms in load.step_ms:
        if not (0 <= rows <= AMOUNT_MAX and 0.0 <= ms <= AMOUNT_MAX):
            return f"step of {rows} rows in {ms} ms"
    return ""


def step_ms(table: Sequence[tuple[int, float]], rows: int) -> float:
    """Time of a step of `rows` rows: linear between measured rows, the last slope beyond them.

    An empty table gives 0: nothing is known, so nothing is added.
    """
    if not table:
        return 0.0
    below, below_ms = table[0]
    if rows <= below:
        return below_ms
    slope = 0.0
    for above, above_ms in table:
        if above > below:
            slope = (above_ms - below_ms) / (above - below)
        if rows <= above:
            break
        below, below_ms = above, above_ms
    return below_ms + max(0.0, slope) * (rows - below)


def known_prefill_ms(states: Sequence[CoreState]) -> float:
    """The median of what cores have measured: the prior for one that has measured nothing yet."""
    known = sorted(
        ms
        for state in states
        if PREFILL_MS_MIN <= (ms := state.load.prefill_ms_per_token) <= PREFILL_MS_MAX
    )
    return known[len(known) // 2] if known else PREFILL_PRIOR_MS


def _possible(source: Source) -> bool:
    return 0.0 <= source.wait_ms <= AMOUNT_MAX and 0.0 <= source.block_ms <= AMOUNT_MAX
