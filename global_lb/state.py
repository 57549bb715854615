"""What a load balancer knows, as clients and people see it: the directory, and a route."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from firstlight.global_lb.distance import Near
from firstlight.global_lb.membership import LEASE_S, Lease, Membership
from firstlight.shared.routing.choose import Wanted, choose
from firstlight.shared.routing.cost import CoreState
from firstlight.shared.types import Report, Role, Route

RTT_PRIOR_MS = 50.0
"""Between an edge and a core that the edge has not measured."""


@dataclass(frozen=True, slots=True)
class EdgeEntry:
    """An edge in the directory."""

    node: str
    address: str
    region: str
    expected_rtt_ms: float | None
    """From the asked-for region, as far as measurements say; None if they do not."""
    expires_in_s: float


def edge_directory(
    membership: Membership, *, region: str | None, near: Mapping[str, Near], now: float
) -> tuple[EdgeEntry, ...]:
    """Edges that live, nearest to `region` first: those in it, then by round trip, then by name.

    Nobody measures the way from a client's region to an edge; what edges measure is the way to the
    cores of that region, which is as long. `near`: what can be believed of that.
    """
    suspects = membership.suspects(now)
    leases = [one for one in membership.live(now) if one.report.info.node not in suspects]
    entries = [
        EdgeEntry(
            node=lease.report.info.node,
            address=lease.report.info.address,
            region=lease.report.info.region,
            expected_rtt_ms=_rtt_from(region, near.get(lease.report.info.node, {})),
            expires_in_s=round(LEASE_S - (now - lease.heard_at), 3),
        )
        for lease in leases
        if lease.report.info.role is Role.EDGE and not lease.report.load.draining
    ]

    def nearness(entry: EdgeEntry) -> tuple[bool, float, str]:
        rtt_ms = entry.expected_rtt_ms
        return entry.region != region, float("inf") if rtt_ms is None else rtt_ms, entry.node

    return tuple(sorted(entries, key=nearness))


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


def _rtt_from(region: str | None, near: Near) -> float | None:
    measured = None if region is None else near.get(region)
    return None if measured is None else round(measured, 3)
