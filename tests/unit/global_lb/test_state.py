"""What a load balancer tells of its members: the view, edges by nearness, and a route."""

from random import Random

from firstlight.global_lb.distance import Distances, measure
from firstlight.global_lb.membership import Membership
from firstlight.global_lb.state import edge_directory, route_of
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


def test_edges_are_listed_nearest_first() -> None:
    members = mesh(
        *CORES,
        edge("e-syd", "syd", lon=250.0, par=260.0),
        edge("e-par", "par", lon=9.0, par=1.0),
        edge("e-new", "tok"),
        edge("e-lon", "lon", lon=1.5),
    )
    near = measure(Distances(), [lease.report for lease in members.live(1)]).near
    entries = edge_directory(members, region="lon", near=near, now=1)
    assert [(entry.node, entry.expected_rtt_ms) for entry in entries] == [
        ("e-lon", 1.5),
        ("e-par", 9.0),
        ("e-syd", 250.0),
        ("e-new", None),
    ]
    assert {entry.expires_in_s for entry in entries} == {4.0}


def test_without_a_region_edges_are_listed_by_name_and_no_round_trip_is_claimed() -> None:
    members = mesh(*CORES, edge("b", "par"), edge("a", "lon"))
    entries = edge_directory(members, region=None, near={}, now=0)
    assert [(entry.node, entry.expected_rtt_ms) for entry in entries] == [("a", None), ("b", None)]


def test_an_edge_that_drains_is_not_listed() -> None:
    info = NodeInfo("e", Role.EDGE, 1, "lon", "e:1")
    members = mesh(Report(info, 1, Load(draining=True)))
    assert edge_directory(members, region="lon", near={}, now=0) == ()


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
