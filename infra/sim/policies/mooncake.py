"""Mooncake's algorithm 1: the earliest first token, with or without moving KV there first.

    for each instance, its prefix against the best prefix of all:
        best > prefix · threshold:  TTFT = transfer(best − prefix) + queue + prefill(prompt − best)
        else:                       TTFT = queue + prefill(prompt − prefix)
    the least TTFT;  above the SLO: refused;  where the first case won: the KV is copied

Source: Qin et al., FAST'25, section 4 and algorithm 1 (arXiv 2407.00079 has the same). The
threshold is tuned by hand there, none is published; the largest one here never moves KV, the rule
that the paper calls cache-aware. Prefill times are the server's own, per token. There is no decode
pool here, and with no SLO set nothing is refused: refusals count as misses in our tables.

Transfer: 128 KiB a token (Llama-3.1-8B in 16 bits), 100 Gbps within a region, the least that the
paper finds useful, and 10 Gbps between regions. The client's round trip is not in the rule.
"""

from collections.abc import Sequence
from math import inf
from random import Random

from firstlight.infra.sim.policies.lowest import NOBODY, lowest
from firstlight.infra.sim.policies.outstanding import Outstanding
from firstlight.infra.sim.policies.policy import Ask, Pick, Policy, Seen

TOKEN_BYTES = 128 * 1024
NEAR_TOKENS_PER_MS = 100e9 / 8 / TOKEN_BYTES / 1e3
FAR_TOKENS_PER_MS = 10e9 / 8 / TOKEN_BYTES / 1e3
NEVER = 1e9


class Mooncake(Policy):
    """The least TTFT, KV transfer included."""

    name = "mooncake"
    source = "Qin et al., Mooncake, FAST'25, algorithm 1"
    has_network_term = False
    knobs = (2.0, 1.0, 4.0, 8.0, NEVER)
    "kvcache_balancing_threshold"

    def __init__(
        self,
        knob: float = knobs[0],
        *,
        ttft_slo_ms: float = inf,
        near_tokens_per_ms: float = NEAR_TOKENS_PER_MS,
        far_tokens_per_ms: float = FAR_TOKENS_PER_MS,
    ) -> None:
        self.threshold = knob
        self.ttft_slo_ms = ttft_slo_ms
        self.near_tokens_per_ms = near_tokens_per_ms
        self.far_tokens_per_ms = far_tokens_per_ms
        self._outstanding = Outstanding()
        self._prefill = (-1, 0)
        """Of the latest pick: the request, and its tokens to compute where it goes."""

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """The first that is earliest, unless even that is too late."""
        if not seen:
            return NOBODY
        best = max(seen, key=lambda one: one.cached_tokens)
        times = [self.ttft_ms(ask, one, best) for one in seen]
        index = lowest(times, rng)
        one, ttft_ms = seen[index], times[index]
        if ttft_ms > self.ttft_slo_ms:
            return Pick(None, reason=f"{ttft_ms:.0f} ms, above {self.ttft_slo_ms:.0f} ms")
        moves = self.moves(one, best)
        cached_tokens = best.cached_tokens if moves else one.cached_tokens
        self._prefill = (ask.request, max(0, ask.prompt_tokens - cached_tokens))
        return Pick(
            one.server, reason=f"{ttft_ms:.0f} ms", fetch_from=best.server if moves else None
        )

    def moves(self, one: Seen, best: Seen) -> bool:
        """Whether the best prefix is so much longer that its KV is copied."""
        return best.cached_tokens > one.cached_tokens * self.threshold and (
            one.cached_tokens > 0 or self.threshold < NEVER
        )

    def ttft_ms(self, ask: Ask, one: Seen, best: Seen) -> float:
        """Of this request at one of the servers."""
        queue_ms = self._outstanding.prefill_tokens(one) * one.prefill_ms_per_token
        if not self.moves(one, best):
            return queue_ms + self._prefill_ms(ask, one, one.cached_tokens)
        near = one.region == best.region
        rate = self.near_tokens_per_ms if near else self.far_tokens_per_ms
        transfer_ms = (best.cached_tokens - one.cached_tokens) / rate
        return transfer_ms + queue_ms + self._prefill_ms(ask, one, best.cached_tokens)

    def sent(self, ask: Ask, server: int) -> None:
        """It is in the queue from now on."""
        request, prefill_tokens = self._prefill
        if request != ask.request:
            prefill_tokens = ask.prompt_tokens
        self._outstanding.sent(ask.request, server, ask.prompt_tokens, prefill_tokens)

    def first_token(self, ask: Ask, server: int, ttft_ms: float, now_s: float) -> None:
        """It is out of the queue."""
        self._outstanding.first_token(ask.request)

    def ended(self, ask: Ask, server: int, latency_ms: float, now_s: float) -> None:
        """It is gone."""
        self._outstanding.ended(ask.request)

    def _prefill_ms(self, ask: Ask, one: Seen, cached_tokens: int) -> float:
        return max(0, ask.prompt_tokens - cached_tokens) * one.prefill_ms_per_token
