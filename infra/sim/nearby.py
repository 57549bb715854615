"""A rule that knows nothing of distance, put where it would be run: within the nearest region.

It sees the cores of the client's region that are below their cap; if there are none, those of the
next nearest region, and so on; if all are at their cap, the nearest.
"""

from collections.abc import Sequence
from random import Random

from firstlight.infra.sim.policies.policy import Ask, Pick, Policy, Seen


class Nearby(Policy):
    """Another rule, with fewer cores to choose from."""

    name = "nearby"
    source = "ours, around the rule of another"
    has_network_term = True
    knobs = (0.0,)

    def __init__(self, rule: Policy) -> None:
        self._rule = rule

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """What the rule picks in the nearest region with room."""
        regions: dict[int, list[Seen]] = {}
        for one in seen:
            regions.setdefault(one.region, []).append(one)
        ordered = sorted(
            regions.values(), key=lambda here: (here[0].region != ask.origin, here[0].rtt_ms)
        )
        for here in ordered:
            free = [one for one in here if one.waiting + one.running < one.sequences_max]
            if free:
                return self._rule.pick(ask, free, rng)
        return self._rule.pick(ask, ordered[0] if ordered else (), rng)

    def sent(self, ask: Ask, server: int) -> None:
        """As the rule."""
        self._rule.sent(ask, server)

    def first_token(self, ask: Ask, server: int, ttft_ms: float, now_s: float) -> None:
        """As the rule."""
        self._rule.first_token(ask, server, ttft_ms, now_s)

    def ended(self, ask: Ask, server: int, latency_ms: float, now_s: float) -> None:
        """As the rule."""
        self._rule.ended(ask, server, latency_ms, now_s)
