"""What a load balancer knows, as people see it: a route."""

from collections.abc import Sequence
from random import Random

from firstlight.global_lb.membership import Lease
from firstlight.shared.geography.site import said_place
from firstlight.shared.routing.choose import Cores, choose
from firstlight.shared.routing.cost import RTT_PRIOR_MS, CoreState
from firstlight.shared.routing.geo import guess_ms
from firstlight.shared.routing.rank import Wanted
from firstlight.shared.routing.spill import Row
from firstlight.shared.types import Report, Role, Route


def route_of(
    edge: Report,
    leases: Sequence[Lease],
    *,
    prompt_tokens: int,
    model: str,
    row: Row | None,
    now: float,
    rng: Random,
) -> Route:
    """What that edge would choose, as far as it can be known here: its round trips, no prefixes.

    `row`: of its region, where the region is drawn for a session of this request's own.
    """
    rtts, here = dict(edge.rtt_ms), said_place(edge.info)
    states = [
        CoreState(
            core=lease.report.info.node,
            region=lease.report.info.region,
            load=lease.report.load,
            rtt_ms=rtts[lease.report.info.node]
            if lease.report.info.node in rtts
            else guess_ms(here, said_place(lease.report.info), otherwise_ms=RTT_PRIOR_MS),
            age_s=max(0.0, now - lease.heard_at),
            numerics_class=lease.report.info.numerics_class,
            models=lease.report.info.models,
            context_max=lease.report.info.context_max,
        )
        for lease in leases
        if lease.report.info.role is Role.CORE
    ]
    wanted = Wanted(home=edge.info.region, prompt_tokens=prompt_tokens, model=model, spill=row)
    return choose(Cores.of(states), wanted, rng)
