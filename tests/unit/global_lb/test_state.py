"""What a load balancer tells of its members: a route."""

from dataclasses import replace
from random import Random

import pytest

from firstlight.global_lb.membership import Membership
from firstlight.global_lb.state import route_of
from firstlight.shared.routing.spill import Row
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
        row=None,
        now=0,
        rng=Random(1),
    )
    assert [candidate.core for candidate in route.candidates] == ["c-par", "c-lon"]
    assert route.reason == "home region"


def test_a_route_shows_what_the_row_of_the_edges_region_drew() -> None:
    waits = replace(CORES[1], load=Load(queued=1))
    route = route_of(
        edge("e", "par", lon=9.0, par=1.0),
        mesh(CORES[0], waits).live(0),
        prompt_tokens=10,
        model="m",
        row=Row((("lon", 1.0),)),
        now=0,
        rng=Random(1),
    )
    assert (route.drawn, route.candidates[0].core) == ("lon", "c-lon")


def test_a_round_trip_that_nobody_measured_is_guessed_by_the_distance() -> None:
    paris, sydney = (48.86, 2.35), (-33.87, 151.21)
    near = replace(CORES[1], info=replace(CORES[1].info, place=paris))
    far = replace(CORES[0], info=replace(CORES[0].info, region="par", place=sydney))
    asking = edge("e", "par")
    asking = replace(asking, info=replace(asking.info, place=paris))
    route = route_of(
        asking,
        mesh(near, far).live(0),
        prompt_tokens=10,
        model="m",
        row=None,
        now=0,
        rng=Random(1),
    )
    costs = {one.core: one.cost.rtt_ms for one in route.candidates if one.cost is not None}
    assert costs["c-par"] == pytest.approx(5.0)
    assert costs["c-lon"] == pytest.approx(5.0 + 16_960 * 1.6 / 100, rel=0.01)
