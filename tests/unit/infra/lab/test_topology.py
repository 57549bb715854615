"""What a topology file says of links, and how a wrong one is refused."""

from pathlib import Path

import pytest
import yaml

from firstlight.infra.lab.links import Shape
from firstlight.infra.lab.presets import PLACES, round_trip_ms
from firstlight.infra.lab.topology import OPERATOR, Topology
from firstlight.infra.lab.topology_file import EXAMPLE, load_topology
from firstlight.shared.errors import ConfigError

NODES = {
    "lb": {"role": "lb", "region": "us"},
    "edge": {"role": "edge", "region": "eu"},
    "core": {"role": "core", "region": "us"},
    "user": {"role": "client", "region": "eu"},
}
FAR = {"between": ["eu", "us"], "rtt_ms": 140}


def topology(*links: object, **more: object) -> Topology:
    whole = {"regions": {"eu": {}, "us": {}}, "nodes": NODES, "links": links, **more}
    return Topology.model_validate(whole)


def written(folder: Path, whole: object) -> Path:
    path = folder / "topology.yaml"
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    return path


def test_a_round_trip_is_half_each_way() -> None:
    told = topology(FAR)
    assert told.shape("edge", "core") == told.shape("core", "edge") == Shape(0.07, reorder_s=0.01)


def test_a_delay_is_one_way() -> None:
    told = topology(FAR, {"from": "edge", "to": "core", "delay_ms": 100, "mbit_per_s": 20})
    there, back = told.shape("edge", "core"), told.shape("core", "edge")
    assert (there.delay_s, there.bits_per_s) == (0.1, 20e6)
    assert (back.delay_s, back.bits_per_s) == (0.07, None)


def test_a_rule_changes_only_what_it_says() -> None:
    told = topology(FAR, {"between": ["edge", "core"], "loss": 0.05})
    assert (told.shape("edge", "core").delay_s, told.shape("edge", "core").loss) == (0.07, 0.05)
    assert told.shape("edge", "lb").loss == 0.0


def test_a_rule_of_two_nodes_wins_over_one_of_regions_wherever_it_stands() -> None:
    told = topology({"between": ["user", "core"], "rtt_ms": 30}, FAR)
    assert told.shape("user", "core").delay_s == pytest.approx(0.015)
    assert told.shape("core", "user").delay_s == pytest.approx(0.015)


def test_of_equal_rules_the_later_wins() -> None:
    assert topology(FAR, {**FAR, "rtt_ms": 20}).shape("edge", "core").delay_s == 0.01


def test_nodes_of_one_region_are_as_far_apart_as_inside_says() -> None:
    assert topology(FAR).shape("edge", "user").delay_s == pytest.approx(0.000_25)
    told = topology(FAR, inside={"delay_ms": 2})
    assert told.shape("edge", "user").delay_s == pytest.approx(0.002)


def test_two_places_are_as_far_apart_as_was_measured() -> None:
    regions = {"eu": {"place": "west-europe"}, "us": {"place": "east-us"}}
    assert topology(regions=regions).shape("edge", "core").delay_s == pytest.approx(0.0455)
    near = topology(FAR, regions=regions)
    assert near.shape("edge", "core").delay_s == pytest.approx(0.07)


def test_every_two_places_have_a_round_trip_that_light_could_make() -> None:
    for one in PLACES:
        assert round_trip_ms(one, one) is None
        for other in set(PLACES) - {one}:
            ms = round_trip_ms(one, other)
            assert ms == round_trip_ms(other, one)
            assert ms is not None
            assert 5 < ms < 400


def test_the_operator_is_at_no_distance() -> None:
    assert topology(FAR).shape(OPERATOR, "core") == Shape(0.0)


def test_the_example_is_a_far_user() -> None:
    told = load_topology(EXAMPLE)
    assert told.shape("user", "edge-eu").delay_s == pytest.approx(0.005)
    assert told.shape("edge-eu", "core-us").delay_s == pytest.approx(0.07)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"links": [{**FAR, "loss": 2}]}, "links.0.loss: 2: Input should be less than"),
        ({"links": [{**FAR, "lose": 1}]}, "links.0.lose: unknown key with value 1"),
        ({"links": [{**FAR, "delay_ms": 3}]}, "links.0: {'between'"),
        ({"links": [{"between": ["eu", "asia"], "rtt_ms": 1}]}, "links.0.between: 'asia', exp"),
        ({"links": [FAR, {"from": "eu", "loss": 0.1}]}, "links.1.to: missing"),
        ({"links": [{**FAR, "from": "eu"}]}, "links.0: between stands beside from or to"),
        ({"links": []}, r"links: nothing says how far it is from lb to edge: .*\[us, eu\]"),
        ({"links": [{**FAR, "jitter_ms": 90}]}, "the jitter is 90 ms and the delay only 70 ms"),
        ({"nodes": {"a": {"role": "boss", "region": "eu"}}}, "nodes.a.role: 'boss': Input should"),
        ({"nodes": {"a": {"role": "lb", "region": "x"}}}, "nodes.a.region: 'x', expected one of"),
        ({"nodes": {"eu": {"role": "lb", "region": "eu"}}}, "nodes.eu: a region has this name"),
        ({"nodes": {OPERATOR: {"role": "lb", "region": "eu"}}}, "nodes.operator: no name"),
        ({"nodes": {}}, "nodes: {}: Dictionary should have at least 1 item"),
        ({"regions": {"eu": {"place": "moon"}}}, "regions.eu.place: 'moon': Input should be"),
        ({"inside": {**FAR}}, "inside: it names ends"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(
    change: dict[str, object], said: str, tmp_path: Path
) -> None:
    whole = {"regions": {"eu": {}, "us": {}}, "nodes": NODES, "links": [FAR], **change}
    with pytest.raises(ConfigError, match=said) as refused:
        load_topology(written(tmp_path, whole))
    assert str(tmp_path) in refused.value.message
