"""What several rules do alike: the lowest cost with ties at random, and a server's load. Sans-IO.

A published rule that counts requests assumes one router, whose own count is the whole load. Several
deciders share the servers here, so `in_flight` is what a server said last and what the decider has
sent there since, or what the decider has open there, whichever is more: better than either alone,
and better than the router it is published with would know. Rules that are known for their local
counts (least request, P2C, peak EWMA) keep those.
"""

from collections.abc import Sequence
from math import inf
from random import Random

from firstlight.infra.sim.policies.policy import Pick, Seen

NOBODY = Pick(None, reason="no server to choose from")


def lowest(costs: Sequence[float], rng: Random) -> int:
    """Where the lowest cost is, ties at random. NaN loses to all; if all are NaN, any will do."""
    best, ties = inf, list[int]()
    for index, cost in enumerate(costs):
        if cost < best:
            best, ties = cost, [index]
        elif cost == best:
            ties.append(index)
    if len(ties) == 1:
        return ties[0]
    return rng.choice(ties or range(len(costs)))


def in_flight(one: Seen) -> int:
    """Requests that a server has, as well as the decider can know."""
    return max(0, one.own_in_flight, one.waiting + one.running + one.unseen_opens)
