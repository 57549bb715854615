"""How far regions are apart, and who says that he is near to all of them."""

from hypothesis import given
from hypothesis import strategies as st
from reports import report

from firstlight.global_lb.distance import Distances, measure
from firstlight.shared.types import NodeInfo, Report, Role

WAYS = {("lon", "par"): 9.0, ("lon", "syd"): 280.0, ("par", "syd"): 290.0}
REGIONS = ("lon", "par", "syd")
CORES = [report(f"c-{region}", region=region) for region in REGIONS]


def edge(node: str, region: str, **ms: float) -> Report:
    info = NodeInfo(node, Role.EDGE, 1, region, f"{node}:1")
    return Report(info, 1, rtt_ms=tuple((f"c-{name}", value) for name, value in ms.items()))


def honest(region: str) -> Report:
    ways = {other: WAYS.get((min(region, other), max(region, other)), 0.5) for other in REGIONS}
    return edge(f"e-{region}", region, **ways)


def test_a_pair_of_regions_is_as_far_as_the_median_of_its_edges_says() -> None:
    edges = [edge(f"e{number}", "lon", par=ms) for number, ms in enumerate((8.0, 9.0, 50.0))]
    assert measure(Distances(), [*CORES, *edges]).pairs == {("lon", "par"): 9.0}


def test_the_nearest_core_of_a_region_counts() -> None:
    other = report("c-par2", region="par")
    said = Report(
        NodeInfo("e", Role.EDGE, 1, "lon", "e:1"), 1, rtt_ms=(("c-par", 9.0), ("c-par2", 12.0))
    )
    assert measure(Distances(), [*CORES, other, said]).near["e"] == {"par": 9.0}


def test_an_edge_that_says_that_it_is_everywhere_is_not_believed() -> None:
    liar = edge("liar", "lon", lon=0.1, par=0.1, syd=0.1)
    found = measure(Distances(), [*CORES, *map(honest, REGIONS), liar])
    assert list(found.impossible) == ["liar"]
    assert found.impossible["liar"] == (
        "0.1 ms from lon and 0.1 ms from syd, which are 280 ms apart"
    )
    assert found.near["liar"] == {}
    assert found.pairs["lon", "syd"] == 280.0


def test_a_liar_keeps_what_it_said_before_it_lied() -> None:
    once = edge("liar", "lon", lon=0.4, par=9.5, syd=281.0)
    before = measure(Distances(), [*CORES, *map(honest, REGIONS), once])
    liar = edge("liar", "lon", lon=0.1, par=0.1, syd=0.1)
    after = measure(before, [*CORES, *map(honest, REGIONS), liar])
    assert after.near["liar"] == {"lon": 0.4, "par": 9.5, "syd": 281.0}
    again = measure(after, [*CORES, *map(honest, REGIONS), once])
    assert again.impossible == {}


def test_honest_edges_do_not_suffer_from_a_liar_with_great_figures() -> None:
    liar = edge("liar", "lon", lon=0.5, par=20_000.0, syd=30_000.0)
    found = measure(Distances(), [*CORES, *map(honest, REGIONS), liar])
    assert found.impossible == {}
    assert found.near["e-lon"]["par"] == 9.0


def test_what_only_one_edge_has_measured_is_believed() -> None:
    alone = edge("e", "lon", lon=0.1, par=0.1, syd=0.1)
    assert measure(Distances(), [*CORES, alone]).impossible == {}


def test_who_is_gone_is_forgotten() -> None:
    before = measure(Distances(), [*CORES, *map(honest, REGIONS)])
    assert measure(before, CORES) == Distances()


@given(
    st.lists(st.floats(0.0, 400.0), min_size=4, max_size=4),
    st.lists(st.floats(-0.3, 0.3), min_size=16, max_size=16),
)
def test_edges_on_a_line_with_noisy_clocks_are_always_believed(
    places: list[float], noise: list[float]
) -> None:
    """Distances of a metric, each measured up to 30 % wrong."""
    names = [f"r{index}" for index in range(4)]
    cores = [report(f"c-{name}", region=name) for name in names]
    edges = [
        edge(
            f"e-{name}",
            name,
            **{
                other: (0.5 + abs(places[at] - places[to])) * (1.0 + noise[4 * at + to])
                for to, other in enumerate(names)
            },
        )
        for at, name in enumerate(names)
    ]
    assert measure(Distances(), [*cores, *edges]).impossible == {}
