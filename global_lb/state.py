"""What a load balancer knows, as others see it: the view for nodes, the directory for clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from firstlight.global_lb.membership import LEASE_S, Lease, Membership
from firstlight.shared.routing.choose import Wanted, choose
from firstlight.shared.routing.cost import CoreState
from firstlight.shared.types import MeshView, Report, Role, Route

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


def mesh_view(membership: Membership, *, lb: str, seq: int, now: float) -> MeshView:
    """Every node's newest report with its age; those that leave too, so that peers hear of it."""
    return MeshView(
        lb=lb,
        seq=seq,
        reports=tuple(
            (lease.report, max(0.0, now - lease.heard_at)) for lease in membership.known(now)
        ),
    )


def edge_directory(
    membership: Membership, *, region: str | None, now: float
) -> tuple[EdgeEntry, ...]:
    """Edges that live, nearest to `region` first: those in it, then by round trip, then by name.

    Nobody measures the way from a client's region to an edge; what edges measure is the way to the
    cores of that region, which is as long.
    """
    leases = membership.live(now)
    regions = {lease.report.info.node: lease.report.info.region for lease in leases}
    entries = [
        EdgeEntry(
            node=lease.report.info.node,
            address=lease.report.info.address,
            region=lease.report.info.region,
            expected_rtt_ms=_rtt_from(region, lease.report, regions),
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


def _rtt_from(region: str | None, edge: Report, regions: dict[str, str]) -> float | None:
    measured = [ms for core, ms in edge.rtt_ms if region and regions.get(core) == region]
    return round(min(measured), 3) if measured else None
