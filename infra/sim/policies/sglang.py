"""SGLang's cache_aware: the longest known prefix while loads are balanced, else the shortest queue.

    imbalanced = busiest − idlest > abs and busiest > rel · idlest:  the idlest
    else match > 0.5 of the prompt:                                  the one that matches
    else:                                                            the idlest

Source: sgl-project/sglang, `sgl-model-gateway/src/policies/cache_aware.rs` (053b63ff), defaults of
`mod.rs` (01f6c92a): abs 32, rel 1.1, match 0.5. The approximate radix tree holds 2^26 characters a
worker (the command line's default; `mod.rs` has 10,000), some 32,768 blocks at four characters a
token; beyond it the leaves not sent for longest go. Load is requests in flight. No network term.
"""

from collections.abc import Sequence
from random import Random

from firstlight.infra.sim.policies.known_blocks import KnownBlocks
from firstlight.infra.sim.policies.lowest import NOBODY, in_flight, lowest
from firstlight.infra.sim.policies.policy import BLOCK_TOKENS, Ask, Pick, Policy, Seen

CHARACTERS_PER_TOKEN = 4
BLOCKS_MAX = (1 << 26) // CHARACTERS_PER_TOKEN // BLOCK_TOKENS
REL_THRESHOLD = 1.1
MATCH_THRESHOLD = 0.5


class CacheAware(Policy):
    """Affinity while balanced, balance otherwise."""

    name = "sglang_cache_aware"
    source = "sgl-project/sglang, sgl-model-gateway/src/policies/cache_aware.rs"
    has_network_term = False
    knobs = (32.0, 4.0, 8.0, 16.0, 64.0)
    "abs: requests that the busiest may have more than the idlest"

    def __init__(self, knob: float = knobs[0]) -> None:
        self.abs_threshold = knob
        self._known = KnownBlocks(BLOCKS_MAX)

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """Look at the balance, then at the tree."""
        if not seen:
            return NOBODY
        loads = [in_flight(one) for one in seen]
        most, least = max(loads), min(loads)
        if most - least > self.abs_threshold and most > REL_THRESHOLD * least:
            return Pick(seen[lowest(loads, rng)].server, reason=f"imbalanced: {least} to {most}")
        matched = self._known.matched(ask.blocks, ask.now_s)
        blocks = [matched.get(one.server, 0) for one in seen]
        if max(blocks) > MATCH_THRESHOLD * len(ask.blocks):
            index = lowest([-count for count in blocks], rng)
            return Pick(seen[index].server, reason=f"{blocks[index]} blocks known there")
        return Pick(seen[lowest(loads, rng)].server, reason="no match, the idlest")

    def sent(self, ask: Ask, server: int) -> None:
        """Put it into the tree."""
        self._known.add(server, ask.blocks, ask.now_s)
