"""GORGO: network, prefill and queue in one sum.

    cost = round trip + (prompt − matched) · t + running tokens · t · q + waiting · mean tokens · t

t is the time of a prompt token, q what a running request's token counts of it, matched the longest
prefix that went to the server before. The least cost; it may be negative. Source: Toniolo et al.,
arXiv 2602.11688, and atoniolo76/gotoni, `pkg/proxy/proxy.go` (1ceede10), without its own queue
(`CapacityGatingEnabled` off): q = 1, 500 tokens for a waiting request while none runs. t there is a
constant, 0.094 ms; here each server's own, and the round trip is the average that the edge keeps.
The prefix tree there has no limit; here a server's blocks do, 262,144, those not sent for longest
go first.
"""

from collections.abc import Sequence
from random import Random

from firstlight.infra.sim.policies.known_blocks import KnownBlocks
from firstlight.infra.sim.policies.lowest import NOBODY, lowest
from firstlight.infra.sim.policies.outstanding import Outstanding
from firstlight.infra.sim.policies.policy import BLOCK_TOKENS, Ask, Pick, Policy, Seen

BLOCKS_MAX = 262_144
WAITING_TOKENS_GUESS = 500.0


class Gorgo(Policy):
    """The least cost, the network's part included."""

    name = "gorgo"
    source = "Toniolo et al., arXiv 2602.11688; atoniolo76/gotoni, pkg/proxy/proxy.go"
    has_network_term = True
    knobs = (1.0, 0.0, 0.1, 0.25, 0.5)
    "q, there `RunningCostFactor`"

    def __init__(self, knob: float = knobs[0]) -> None:
        self.running_factor = knob
        self._outstanding = Outstanding()
        self._known = KnownBlocks(BLOCKS_MAX)

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """Add up and compare."""
        if not seen:
            return NOBODY
        matched = self._known.matched(ask.blocks, ask.now_s)
        costs = [self.cost_ms(ask, one, matched.get(one.server, 0)) for one in seen]
        index = lowest(costs, rng)
        return Pick(seen[index].server, reason=f"cost {costs[index]:.0f} ms")

    def cost_ms(self, ask: Ask, one: Seen, matched_blocks: int) -> float:
        """Of this request at one of the servers."""
        matched_tokens = min(ask.prompt_tokens, matched_blocks * BLOCK_TOKENS)
        waiting_tokens = one.waiting * (self._outstanding.mean_tokens() or WAITING_TOKENS_GUESS)
        tokens = (
            ask.prompt_tokens
            - matched_tokens
            + self._outstanding.tokens(one) * self.running_factor
            + waiting_tokens
        )
        return one.rtt_ms + tokens * one.prefill_ms_per_token

    def sent(self, ask: Ask, server: int) -> None:
        """It runs from now on."""
        self._outstanding.sent(ask.request, server, ask.prompt_tokens, ask.prompt_tokens)

    def first_token(self, ask: Ask, server: int, ttft_ms: float, now_s: float) -> None:
        """The server has answered: its prefix is there."""
        self._known.add(server, ask.blocks, now_s)

    def ended(self, ask: Ask, server: int, latency_ms: float, now_s: float) -> None:
        """It runs no longer."""
        self._outstanding.ended(ask.request)
