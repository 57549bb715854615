"""Which faults there are, what each needs, and whom it strikes."""

from typing import Any, get_args

import pytest
from unit.infra.lab.test_plan import NODES, topology

from firstlight.infra.lab.fault_plan import RULES, Kind, check, parse, struck
from firstlight.shared.errors import ConfigError

TOPOLOGY = topology(NODES)


def test_every_kind_has_a_rule() -> None:
    assert tuple(RULES) == get_args(Kind)


@pytest.mark.parametrize(
    ("said", "targets"),
    [
        ({"do": "kill", "node": "index"}, ("index",)),
        ({"do": "slow", "node": "core", "share": 0.1, "for_s": 3}, ("core",)),
        ({"do": "clock", "node": "lb", "shift_s": -3600}, ("lb",)),
        ({"do": "corrupt", "node": "far", "how": "swap", "blocks": 4}, ("far",)),
        ({"do": "partition", "from": "edge", "to": "us"}, ("core", "edge", "index", "lb")),
        ({"do": "link", "from": "user", "to": "edge", "link": {"loss": 1}}, ("edge", "user")),
        ({"do": "region", "region": "eu"}, ("far", "edge")),
    ],
)
def test_a_fault_strikes_the_nodes_that_it_names(
    said: dict[str, Any], targets: tuple[str, ...]
) -> None:
    fault = parse(said)
    check(fault, TOPOLOGY)
    assert struck(fault, TOPOLOGY) == targets


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"do": "melt", "node": "core"}, "do: 'melt', expected one of kill, restart, freeze"),
        ({"do": "kill"}, "fault: node: missing; kill needs it"),
        ({"do": "slow", "node": "core"}, "share: missing; slow needs it"),
        ({"do": "slow", "node": "core", "share": 0.001}, "share: 0.001"),
        ({"do": "partition", "from": "eu"}, "to: missing; partition needs it"),
        ({"do": "hang", "node": "core", "share": 0.5}, "share: hang has no such thing"),
        ({"do": "region", "region": "eu", "node": "x"}, "node: region has no such thing"),
        ({"do": "flush", "node": "index", "for_s": 3}, "for_s: flush does not last"),
        ({"do": "kill", "node": "core", "colour": 1}, "colour: 1"),
    ],
)
def test_what_is_no_fault_is_refused_by_name(said: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(said)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"do": "kill", "node": "mars"}, "kill: no node is called 'mars': core, far"),
        ({"do": "kill", "node": "user"}, "user has the role client, expected lb, edge, core"),
        ({"do": "hang", "node": "edge"}, "edge has the role edge, expected core"),
        ({"do": "region", "region": "asia"}, "no region is called 'asia': eu, us"),
        ({"do": "partition", "from": "eu", "to": "asia"}, "'asia', expected a region or a node"),
    ],
)
def test_what_the_topology_has_not_is_refused_by_name(said: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check(parse(said), TOPOLOGY)


def test_one_direction_is_another_fault_than_both() -> None:
    both = parse({"do": "partition", "from": "eu", "to": "us"})
    one = parse({"do": "partition", "from": "eu", "to": "us", "one_way": True})
    assert both.what != one.what
