"""What an operator may do to the links of a running laboratory."""

import pytest

from firstlight.infra.lab.links import Drop
from firstlight.infra.lab.paths import Path, Paths
from firstlight.infra.lab.topology import Topology
from firstlight.shared.errors import ConfigError

TOPOLOGY = Topology.model_validate(
    {
        "regions": {"eu": {}, "us": {}},
        "nodes": {
            "edge": {"role": "edge", "region": "eu"},
            "user": {"role": "client", "region": "eu"},
            "core": {"role": "core", "region": "us"},
        },
        "links": [{"between": ["eu", "us"], "rtt_ms": 100}],
    }
)


@pytest.fixture
def paths() -> Paths:
    return Paths(TOPOLOGY)


def cut(paths: Paths) -> set[tuple[str, str]]:
    return {(path.source, path.target) for path in paths if path.link.cut}


def test_a_partition_of_regions_cuts_every_pair_both_ways(paths: Paths) -> None:
    assert paths.command({"do": "partition", "from": "eu", "to": "us"}) == {"ok": True, "paths": 4}
    ways = {("edge", "core"), ("user", "core")}
    assert cut(paths) == ways | {(b, a) for a, b in ways}


def test_a_partition_can_go_one_way(paths: Paths) -> None:
    paths.command({"do": "partition", "from": "core", "to": "edge", "one_way": True})
    assert cut(paths) == {("core", "edge")}
    assert paths.path("core", "edge").link.send(100, 1.0) is Drop.CUT
    assert paths.path("edge", "core").link.send(100, 1.0) == pytest.approx(1.05)


def test_a_node_is_cut_off_from_everyone(paths: Paths) -> None:
    paths.command({"do": "partition", "from": "core"})
    assert cut(paths) == {("edge", "core"), ("core", "edge"), ("user", "core"), ("core", "user")}


def test_healing_mends_cuts_and_leaves_changes(paths: Paths) -> None:
    paths.command({"do": "set", "from": "edge", "to": "core", "link": {"loss": 0.5}})
    paths.command({"do": "partition"})
    paths.command({"do": "heal"})
    assert cut(paths) == set()
    assert paths.path("edge", "core").link.shape.loss == 0.5


def test_a_change_keeps_what_it_does_not_name(paths: Paths) -> None:
    paths.command({"do": "set", "from": "edge", "to": "core", "link": {"rtt_ms": 300}})
    paths.command({"do": "set", "from": "edge", "to": "core", "link": {"jitter_ms": 20}})
    shape = paths.path("core", "edge").link.shape
    assert (shape.delay_s, shape.jitter_s) == pytest.approx((0.15, 0.02))


def test_a_limit_can_be_lifted(paths: Paths) -> None:
    for limit, bits_per_s in ((5, 5e6), (None, None)):
        paths.command({"do": "set", "from": "edge", "link": {"mbit_per_s": limit}})
        assert paths.path("edge", "core").link.shape.bits_per_s == bits_per_s


def test_a_reset_brings_back_the_topology(paths: Paths) -> None:
    paths.command({"do": "set", "link": {"delay_ms": 900}})
    paths.command({"do": "partition"})
    paths.command({"do": "reset"})
    path = paths.path("edge", "core")
    assert (path.link.cut, path.changed, path.link.shape.delay_s) == (False, False, 0.05)


def test_two_paths_draw_different_lots_and_the_same_again(paths: Paths) -> None:
    paths.command({"do": "set", "link": {"jitter_ms": 0.2}})

    def times(path: Path) -> list[float | Drop]:
        return [path.link.send(100, now) for now in range(20)]

    there, back = times(paths.path("edge", "core")), times(paths.path("core", "edge"))
    again = Paths(TOPOLOGY)
    again.command({"do": "set", "link": {"jitter_ms": 0.2}})
    assert there != back
    assert times(again.path("edge", "core")) == there


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ({"do": "explode"}, "do: 'explode', expected set, partition"),
        ({}, "do: None, expected"),
        ({"do": "partition", "from": "mars"}, "from: 'mars', expected a region or a node"),
        ({"do": "partition", "from": "core", "to": "core"}, "one node, and no link"),
        ({"do": "heal", "link": {"loss": 0}}, "link: unknown key"),
        ({"do": "set"}, "link: None, expected properties"),
        ({"do": "set", "link": {"loss": 3}}, "link.loss: 3: Input should be less"),
        ({"do": "set", "link": {"size": 3}}, "link.size: 3: Extra inputs"),
        ({"do": "set", "link": {"jitter_ms": 51}}, "the jitter is 51 ms and the delay only"),
    ],
)
def test_what_cannot_be_done_is_refused_whole(
    paths: Paths, command: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        paths.command(command)
    assert not any(path.changed or path.link.cut for path in paths)
