"""Least request: the server with the fewest requests that this router has open.

Source: Envoy's least request balancer with a full scan (`selection_method: FULL_SCAN`): "picks the
host which has the fewest active requests", ties at random. Active requests are the router's own.
"""

from collections.abc import Sequence
from random import Random

from firstlight.infra.sim.policies.lowest import NOBODY, lowest
from firstlight.infra.sim.policies.policy import Ask, Pick, Policy, Seen


class LeastRequest(Policy):
    """The fewest open requests of its own."""

    name = "least_request"
    source = "Envoy, extensions.load_balancing_policies.least_request.v3, FULL_SCAN"
    has_network_term = False
    knobs = (0.0,)

    def __init__(self, knob: float = knobs[0]) -> None:
        """There is nothing to turn."""

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """Scan all."""
        if not seen:
            return NOBODY
        one = seen[lowest([one.own_in_flight for one in seen], rng)]
        return Pick(one.server, reason=f"{one.own_in_flight} open here")
