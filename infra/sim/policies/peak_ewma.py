"""Peak EWMA: two servers drawn at random, the lower of latency × (open requests + 1).

    a sample above the average replaces it at once
    any other:  w = e^(−Δt/τ);  average = average·w + sample·(1 − w)
    a reading is a sample of 0, so the average of a server that gets nothing decays
    no history but open requests: a penalty, so that a new server is tried once before it is known

Source: twitter/finagle, `loadbalancer/PeakEwma.scala` (1e8497ea); τ = 10 s. What is measured is the
time to the first token, as in linkerd2, which stops its clock at the first data frame; Finagle's
own, until the end, would make a long answer look like a slow server. The round trip is in the
sample, but no server is known before it was tried: no network term of its own.
"""

from collections.abc import Sequence
from math import exp
from random import Random

from firstlight.infra.sim.policies.lowest import NOBODY, lowest
from firstlight.infra.sim.policies.policy import Ask, Pick, Policy, Seen

PENALTY_MS = float((1 << 63) - 1 >> 16) / 1e6
"""Finagle's, which is in nanoseconds."""
SERVERS_MAX = 65_536
"""Servers that are remembered; beyond it the one first sampled is forgotten."""


class PeakEwma(Policy):
    """Sensitive to peaks, slow to forgive."""

    name = "peak_ewma"
    source = "twitter/finagle, loadbalancer/PeakEwma.scala; linkerd2 for when to stop the clock"
    has_network_term = False
    knobs = (10.0, 1.0, 3.0, 30.0, 100.0)
    "τ in seconds"

    def __init__(self, knob: float = knobs[0]) -> None:
        self.decay_s = knob
        self._known: dict[int, tuple[float, float]] = {}
        """Average in ms, and when it was taken."""

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """The lower load of two."""
        if not seen:
            return NOBODY
        drawn = rng.sample(seen, min(2, len(seen)))
        loads = [self.load(one, ask.now_s) for one in drawn]
        index = lowest(loads, rng)
        return Pick(drawn[index].server, reason=f"load {loads[index]:.3g} ms")

    def load(self, one: Seen, now_s: float) -> float:
        """Latency × (open + 1), now."""
        cost = self._sampled(one.server, 0.0, now_s)
        if cost == 0.0 and one.own_in_flight != 0:
            return PENALTY_MS + one.own_in_flight
        return cost * (one.own_in_flight + 1)

    def first_token(self, ask: Ask, server: int, ttft_ms: float, now_s: float) -> None:
        """Take a sample; what is no time is none."""
        if 0.0 <= ttft_ms < PENALTY_MS:
            if server not in self._known and len(self._known) >= SERVERS_MAX:
                del self._known[next(iter(self._known))]
            self._known[server] = (self._sampled(server, ttft_ms, now_s), now_s)

    def _sampled(self, server: int, sample_ms: float, now_s: float) -> float:
        cost, then_s = self._known.get(server, (0.0, now_s))
        if sample_ms > cost:
            return sample_ms
        weight = exp(-max(now_s - then_s, 0.0) / self.decay_s)
        return cost * weight + sample_ms * (1.0 - weight)
