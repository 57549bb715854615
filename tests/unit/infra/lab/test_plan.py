"""The mesh that comes of a topology, and that every role accepts what is written for it."""

from pathlib import Path
from typing import Any

import pytest

from firstlight.core_node.config import CoreSettings
from firstlight.edge_node.config import EdgeSettings
from firstlight.edge_node.tenants import Tenants
from firstlight.global_lb.config import LbSettings
from firstlight.infra.lab.network import address_v6, addresses
from firstlight.infra.lab.plan import (
    KEY,
    TENANT,
    disk_directory,
    places_at,
    plan_lab,
    write_tenants,
)
from firstlight.infra.lab.relay_network import relay_places
from firstlight.infra.lab.topology import Topology
from firstlight.infra.mesh_config import MeshPlan, write_configs
from firstlight.shared.config import load_settings
from firstlight.shared.errors import ConfigError

NODES: dict[str, Any] = {
    "core": {"role": "core", "region": "us", "settings": {"engine": {"blocks": 99}, "drain_s": 7}},
    "far": {"role": "core", "region": "eu"},
    "edge": {"role": "edge", "region": "eu"},
    "lb": {"role": "lb", "region": "us"},
    "index": {"role": "valkey", "region": "us"},
    "user": {"role": "client", "region": "eu"},
}


def topology(nodes: dict[str, Any]) -> Topology:
    links = [{"between": ["eu", "us"], "rtt_ms": 10}]
    whole = {"regions": {"eu": {}, "us": {}}, "nodes": nodes, "links": links}
    return Topology.model_validate(whole)


def planned(nodes: dict[str, Any], run: Path, *, relay: bool = False) -> MeshPlan:
    told = topology(nodes)
    places = relay_places(told) if relay else places_at(told, addresses(told))
    plan = plan_lab(told, places, run)
    write_tenants(run)
    write_configs(plan, run, run)
    return plan


def test_nobody_shares_an_address() -> None:
    given = addresses(topology(NODES))
    assert given["operator"] == "10.77.0.1"
    assert given["edge"] == "10.77.1.2"
    assert given["core"] == "10.77.2.1"
    assert len(set(given.values())) == len(NODES) + 1
    assert address_v6(given["core"]) == "fd77::2:1"


def test_the_load_balancer_is_first_and_clients_are_no_nodes(tmp_path: Path) -> None:
    plan = planned(NODES, tmp_path)
    assert plan.names[0] == "lb"
    assert set(plan.names) == {"lb", "edge", "core", "far"}
    assert plan.lb_url == "https://10.77.2.2:8480"
    assert [edge.url for edge in plan.edges] == ["https://10.77.1.2:8443"]


def test_every_role_accepts_its_file(tmp_path: Path) -> None:
    planned(NODES, tmp_path)
    core = load_settings(CoreSettings, tmp_path / "core.yaml")
    edge = load_settings(EdgeSettings, tmp_path / "edge.yaml")
    lb = load_settings(LbSettings, tmp_path / "lb.yaml")
    assert (core.listen, core.region) == ("10.77.2.1:8500", "us")
    assert edge.load_balancers == core.load_balancers == (lb.control.listen,)
    assert Tenants.load(edge.keys.tenants_file, loopback=False).of(f"Bearer {KEY}") == TENANT


def test_a_nodes_own_settings_go_over_the_laboratorys(tmp_path: Path) -> None:
    planned(NODES, tmp_path)
    core = load_settings(CoreSettings, tmp_path / "core.yaml")
    assert (core.engine.blocks, core.drain_s, core.model.threads) == (99, 7, 1)


def test_every_node_has_a_door_for_faults_of_its_own(tmp_path: Path) -> None:
    planned(NODES, tmp_path)
    doors = {
        load_settings(CoreSettings, tmp_path / "core.yaml").faults,
        load_settings(CoreSettings, tmp_path / "far.yaml").faults,
        load_settings(EdgeSettings, tmp_path / "edge.yaml").faults,
        load_settings(LbSettings, tmp_path / "lb.yaml").faults,
    }
    assert None not in doors
    assert len(doors) == 4


def test_a_core_with_a_disk_of_its_own_keeps_blocks_on_it(tmp_path: Path) -> None:
    planned(NODES | {"core": NODES["core"] | {"disk_mb": 10}}, tmp_path)
    disk = load_settings(CoreSettings, tmp_path / "core.yaml").kv.disk
    assert disk.directory == disk_directory(tmp_path, "core") / "kv"
    assert disk.bytes_max == 9 << 20
    assert load_settings(CoreSettings, tmp_path / "far.yaml").kv.disk.directory is None


def test_a_disk_for_who_keeps_nothing_is_a_problem() -> None:
    told = topology(NODES | {"edge": NODES["edge"] | {"disk_mb": 10}})
    assert told.problems() == ["nodes.edge.disk_mb: only cores keep something on a disk, not edge"]


def test_a_core_without_an_index_in_its_region_does_without(tmp_path: Path) -> None:
    planned(NODES, tmp_path)
    assert load_settings(CoreSettings, tmp_path / "far.yaml").kv.index.redis.url is None
    url = load_settings(CoreSettings, tmp_path / "core.yaml").kv.index.redis.url
    assert url == "redis://10.77.2.3:6379"


def test_relays_stand_before_all_but_the_index(tmp_path: Path) -> None:
    plan = planned(NODES, tmp_path, relay=True)
    core = load_settings(CoreSettings, tmp_path / "core.yaml")
    lb = load_settings(LbSettings, tmp_path / "lb.yaml")
    assert core.advertise != core.listen
    assert core.load_balancers != (lb.control.listen,)
    assert plan.lb_url != f"https://{lb.http.listen}"
    assert core.kv.index.redis.url == plan.valkeys[0].url


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ({k: v for k, v in NODES.items() if k != "lb"}, "nodes: none has the role lb"),
        (NODES | {"two": NODES["index"]}, "nodes.two: region us has an index server already"),
        (
            NODES | {"edge": NODES["edge"] | {"settings": {"listen": "x"}}},
            "nodes.edge.settings.listen: the laboratory says this itself",
        ),
    ],
)
def test_what_no_mesh_can_come_of_is_refused(
    nodes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        planned(nodes, tmp_path)
