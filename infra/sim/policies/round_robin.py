"""Round robin: each server in turn, whatever it has to do.

Source: Envoy's "weighted round robin" with equal weights (docs, "Supported load balancers"). Envoy
starts at a random host, so that several routers do not walk in step; so does this.
"""

from collections.abc import Sequence
from random import Random

from firstlight.infra.sim.policies.lowest import NOBODY
from firstlight.infra.sim.policies.policy import Ask, Pick, Policy, Seen


class RoundRobin(Policy):
    """The next server in the order of their ids."""

    name = "round_robin"
    source = "Envoy, docs: intro/arch_overview/upstream/load_balancing/load_balancers"
    has_network_term = False
    knobs = (0.0,)

    def __init__(self, knob: float = knobs[0]) -> None:
        self._last: int | None = None

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """The smallest id above the last one, else the smallest of all."""
        if not seen:
            return NOBODY
        servers = [one.server for one in seen]
        if self._last is None:
            self._last = rng.choice(servers)
        else:
            last = self._last
            self._last = min((one for one in servers if one > last), default=min(servers))
        return Pick(self._last, reason="its turn")
