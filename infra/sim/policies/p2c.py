"""Power of two choices: the less loaded of two servers drawn at random.

Source: Mitzenmacher's thesis, as in Envoy's least request balancer (`choice_count`, 2 unless set):
N hosts drawn at random, the one with the fewest active requests wins. Active requests are the
router's own. "A host with the highest number of active requests in the cluster will never receive
new requests" (Envoy's docs), which holds for N ≥ 2 and distinct hosts.
"""

from collections.abc import Sequence
from random import Random

from firstlight.infra.sim.policies.lowest import NOBODY, lowest
from firstlight.infra.sim.policies.policy import Ask, Pick, Policy, Seen


class P2C(Policy):
    """The fewest open requests of its own, among `choices` drawn at random."""

    name = "p2c"
    source = "Mitzenmacher, The power of two choices; Envoy, least_request.v3, choice_count"
    has_network_term = False
    knobs = (2.0, 3.0, 4.0, 6.0, 10.0)
    "choices"

    def __init__(self, knob: float = knobs[0]) -> None:
        self.choices = int(knob)

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """Draw and compare."""
        if not seen:
            return NOBODY
        drawn = rng.sample(seen, min(self.choices, len(seen)))
        one = drawn[lowest([one.own_in_flight for one in drawn], rng)]
        return Pick(one.server, reason=f"{one.own_in_flight} open here, least of {len(drawn)}")
