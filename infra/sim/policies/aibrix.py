"""AIBrix's prefix-cache routing: the longest known prefix, unless its server stands out by load.

    if the busiest has > 2·(mean + 1) requests and ≥ 8 more than the idlest: only the idlest match
    of those that match, the longest prefix first, then the fewest requests: the first with
    requests ≤ mean + f·σ of all;  none: the fewest requests

Source: vllm-project/aibrix, `pkg/plugins/gateway/algorithms/prefix_cache.go` (01de8a51): factor 2,
gap 8, f = 1 (the README beside it says 16 and 2). The table holds 200,000 blocks for 20 minutes;
here each server's may, those not sent for longest are forgotten first. No network term.
"""

from collections.abc import Sequence
from math import sqrt
from random import Random

from firstlight.infra.sim.policies.known_blocks import KnownBlocks
from firstlight.infra.sim.policies.lowest import NOBODY, in_flight, lowest
from firstlight.infra.sim.policies.policy import Ask, Pick, Policy, Seen

BLOCKS_MAX = 200_000
TTL_S = 1200.0
IMBALANCE_FACTOR = 2.0
IMBALANCE_GAP = 8


def imbalanced(counts: Sequence[int]) -> bool:
    """Whether the busiest is so far ahead that only the idlest may be matched."""
    mean = sum(counts) / len(counts)
    gap = max(counts) - min(counts)
    return max(counts) > IMBALANCE_FACTOR * (mean + 1) and gap >= IMBALANCE_GAP


def allowed_requests(counts: Sequence[int], factor: float) -> float:
    """Mean and so many standard deviations; beyond it a match does not count."""
    mean = sum(counts) / len(counts)
    return mean + factor * sqrt(sum((count - mean) ** 2 for count in counts) / len(counts))


class AIBrix(Policy):
    """The longest prefix on a server that is not much busier than the rest."""

    name = "aibrix"
    source = "vllm-project/aibrix, pkg/plugins/gateway/algorithms/prefix_cache.go"
    has_network_term = False
    knobs = (1.0, 0.0, 0.5, 2.0, 4.0)
    "f: standard deviations above the mean that a match may have"

    def __init__(self, knob: float = knobs[0]) -> None:
        self.factor = knob
        self._known = KnownBlocks(BLOCKS_MAX, TTL_S)

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """Match, then look at load."""
        if not seen:
            return NOBODY
        counts = [in_flight(one) for one in seen]
        matched = self._known.matched(ask.blocks, ask.now_s)
        most = min(counts) if imbalanced(counts) else allowed_requests(counts, self.factor)
        ranks = [
            -matched[one.server] + count / (1.0 + max(counts))  # < 1: a tie of prefixes by load
            if one.server in matched and count <= most
            else float("inf")
            for one, count in zip(seen, counts, strict=True)
        ]
        if min(ranks) < float("inf"):
            one = seen[lowest(ranks, rng)]
            return Pick(one.server, reason=f"{matched[one.server]} blocks known there")
        index = lowest(counts, rng)
        return Pick(seen[index].server, reason=f"{counts[index]} requests, the fewest")

    def sent(self, ask: Ask, server: int) -> None:
        """It will be known there."""
        self._known.add(server, ask.blocks, ask.now_s)
