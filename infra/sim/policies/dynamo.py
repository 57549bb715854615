"""NVIDIA Dynamo's KV router: prefill and decode in one unit, blocks.

    prefill = active prefill blocks + blocks of this prompt − credit · its blocks cached there, ≥ 0
    cost    = scale · prefill + active decode blocks
    temperature 0: the lowest cost, ties at random
    else: drawn with probability ~ e^(−(cost − lowest)/((highest − lowest) · temperature))

Source: ai-dynamo/dynamo, `lib/kv-router/src/scheduling/selector/default.rs` (07a6c9ce) and
`docs/components/router/router_guide.md`, whose three workers are in the tests. Defaults: credit 1,
scale 1 (once `kv-overlap-score-weight`), credit decay 0, temperature 0. The blocks of this
request's own decoding are the same for every server and left out. Active blocks are what the router
sent; those of other routers are added as `--router-replica-sync` would. There is no network term.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import exp, isfinite
from random import Random

from firstlight.infra.sim.policies.lowest import NOBODY, lowest
from firstlight.infra.sim.policies.outstanding import Outstanding
from firstlight.infra.sim.policies.policy import Ask, Pick, Policy, Seen

BLOCK_TOKENS = 16


def drawn(costs: Sequence[float], temperature: float, rng: Random) -> int:
    """A place, the lower its cost the likelier; costs that are no numbers have no chance."""
    known = [cost for cost in costs if isfinite(cost)]
    if temperature <= 0.0 or not known:
        return lowest(costs, rng)
    least = min(known)
    scale = ((max(known) - least) or 1.0) * temperature
    weights = [exp((least - cost) / scale) if isfinite(cost) else 0.0 for cost in costs]
    sums = list(accumulate(weights))
    at = rng.random() * sums[-1]
    at_last = costs.index(least)  # rounding may put the lot on the very end
    return next((index for index, total in enumerate(sums) if at < total), at_last)


class Dynamo(Policy):
    """The lowest cost in blocks."""

    name = "dynamo"
    source = "ai-dynamo/dynamo, lib/kv-router/src/scheduling/selector/default.rs"
    has_network_term = False
    knobs = (1.0, 0.5, 2.0, 4.0, 8.0)
    "scale: how much more a block of prefill weighs than one of decode"

    def __init__(
        self, knob: float = knobs[0], *, temperature: float = 0.0, credit: float = 1.0
    ) -> None:
        self.scale = knob
        self.temperature = temperature
        self.credit = credit
        self._outstanding = Outstanding()
        self._cached = (-1, 0)
        """Of the latest pick: the request, and its tokens that are cached where it goes."""

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """Compare costs, or draw by them."""
        if not seen:
            return NOBODY
        costs = [self.cost(ask, one) for one in seen]
        index = drawn(costs, self.temperature, rng)
        self._cached = (ask.request, seen[index].cached_tokens)
        return Pick(seen[index].server, reason=f"{costs[index]:.0f} blocks")

    def cost(self, ask: Ask, one: Seen) -> float:
        """In blocks."""
        prefill_tokens = self._outstanding.prefill_tokens(one) + ask.prompt_tokens
        uncached_tokens = max(0.0, prefill_tokens - self.credit * one.cached_tokens)
        decode_tokens = self._outstanding.tokens(one)
        return (self.scale * uncached_tokens + decode_tokens) / BLOCK_TOKENS

    def sent(self, ask: Ask, server: int) -> None:
        """Count it at once."""
        request, cached_tokens = self._cached
        prefill_tokens = ask.prompt_tokens - (cached_tokens if request == ask.request else 0)
        self._outstanding.sent(ask.request, server, ask.prompt_tokens, max(0, prefill_tokens))

    def first_token(self, ask: Ask, server: int, ttft_ms: float, now_s: float) -> None:
        """Its prefill is done."""
        self._outstanding.first_token(ask.request)

    def ended(self, ask: Ask, server: int, latency_ms: float, now_s: float) -> None:
        """Its blocks are free."""
        self._outstanding.ended(ask.request)
