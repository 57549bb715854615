"""What a load balancer tells of its members: the view, and a route."""

from random import Random

from firstlight.global_lb.membership import Membership
from firstlight.global_lb.state import route_of
from firstlight.shared.types import Load, NodeInfo, Report, Role

CORES = [
    Report(NodeInfo("c-lon", Role.CORE, 1, "lon", "c-lon:1", models=("m",)), 1, Load()),
    Report(NodeInfo("c-par", Role.CORE, 1, "par", "c-par:1", models=("m",)), 1, Load()),
]


def edge(node: str, region: str, **rtts: float) -> Report:
    info = NodeInfo(node, Role.EDGE, 1, region, f"{node}:443")
    return Report(info, 1, rtt_ms=tuple((f"c-{name}", ms) for name, ms in rtts.items()))


def mesh(*reports: Report) -> Membership:
    members = Membership()
    for report in reports:
        members.report(report, now=0)
    return members


def test_a_route_is_told_as_the_edge_would_choose_it() -> None:
    reporter = edge("e", "par", lon=9.0, par=1.0)
    route = route_of(
        reporter,
        mesh(*CORES).live(0),
        prompt_tokens=10,
        model="m",
        now=0,
        rng=Random(1),
    )
    assert [candidate.core for candidate in route.candidates] == ["c-par", "c-lon"]
    assert route.reason == "home region"
