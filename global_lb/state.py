"""What a load balancer knows, as people see it: a route."""

from collections.abc import Sequence
from random import Random

from firstlight.global_lb.membership import Lease
from firstlight.shared.routing.choose import Wanted, choose
from firstlight.shared.routing.cost import CoreState
from firstlight.shared.types import Report, Role, Route

RTT_PRIOR_MS = 50.0
"""Between an edge and a core that the edge has not measured."""


def route_of(
    edge: Report,
    leases: Sequence[Lease],
    *,
    prompt_tokens: int,
    model: str,
    now: float,
    rng: Random,
) -> Route:
    """What that edge would choose, as far as it can be known here: its round trips, no prefixes."""
    rtts = dict(edge.rtt_ms)
    states = [
        CoreState(
            core=lease.report.info.node,
            region=lease.report.info.region,
            load=lease.report.load,
            rtt_ms=rtts.get(lease.report.info.node, RTT_PRIOR_MS),
            age_s=max(0.0, now - lease.heard_at),
            numerics_class=lease.report.info.numerics_class,
            models=lease.report.info.models,
            context_max=lease.report.info.context_max,
        )
        for lease in leases
        if lease.report.info.role is Role.CORE
    ]
    wanted = Wanted(home=edge.info.region, prompt_tokens=prompt_tokens, model=model)
    return choose(states, wanted, rng)
