"""The plan of a local mesh, and that every role accepts its configuration file."""

import re
from pathlib import Path

import pytest
import yaml

from firstlight.core_node.config import CoreSettings
from firstlight.edge_node.config import EdgeSettings
from firstlight.global_lb.config import LbSettings
from firstlight.infra.mesh_config import MeshPlan, plan_mesh, write_configs
from firstlight.shared.config import Settings, load_settings
from firstlight.shared.types import Role

SETTINGS: dict[Role, type[Settings]] = {
    Role.LB: LbSettings,
    Role.EDGE: EdgeSettings,
    Role.CORE: CoreSettings,
}


@pytest.fixture
def plan() -> MeshPlan:
    return plan_mesh(lambda count: list(range(20_000, 20_000 + count)))


def test_there_are_two_regions_with_an_edge_and_a_core_each(plan: MeshPlan) -> None:
    assert plan.names == ("lb", "edge-eu", "core-eu", "edge-us", "core-us")
    assert [(edge.node, edge.region) for edge in plan.edges] == [
        ("edge-eu", "eu"),
        ("edge-us", "us"),
    ]


def test_no_two_nodes_share_a_port(plan: MeshPlan, tmp_path: Path) -> None:
    write_configs(plan, tmp_path, tmp_path)
    found = [
        re.findall(r"127\.0\.0\.1:(\d+)", path.read_text()) for path in tmp_path.glob("*.yaml")
    ]
    asked = {"20001", *(str(valkey.port) for valkey in plan.valkeys)}  # of these, others ask
    own = [sorted(set(ports) - asked) for ports in found]
    assert len(asked) == 1 + len(plan.valkeys)
    assert sorted(port for ports in own for port in ports) == sorted({p for o in own for p in o})


def test_every_core_finds_the_index_server_of_its_region(plan: MeshPlan, tmp_path: Path) -> None:
    write_configs(plan, tmp_path, tmp_path)
    for region in ("eu", "us"):
        index = load_settings(CoreSettings, tmp_path / f"core-{region}.yaml").kv.index
        valkey = plan.valkey(region)
        assert (valkey.name, valkey.region) == (f"valkey-{region}", region)
        assert index.redis.url == f"redis://127.0.0.1:{valkey.port}"
        assert index.redis.password_file == valkey.password_file(tmp_path)
    assert len({valkey.port for valkey in plan.valkeys}) == 2


def test_a_view_with_all_nodes_and_round_trips_lacks_nothing(plan: MeshPlan) -> None:
    cores = {"core-eu": 1.0, "core-us": 2.0}
    view = {"edge-eu": cores, "edge-us": cores, "core-eu": {}, "core-us": {}}
    assert plan.missing_from(view) == ""
    assert "core-us" in plan.missing_from({n: v for n, v in view.items() if n != "core-us"})
    assert plan.missing_from({**view, "edge-us": {"core-us": 1.0}}) == (
        "edge-us is not linked to core-eu"
    )


def test_every_role_accepts_its_file(plan: MeshPlan, tmp_path: Path) -> None:
    write_configs(plan, tmp_path, tmp_path)
    for node in plan.nodes:
        settings = load_settings(SETTINGS[node.role], tmp_path / f"{node.name}.yaml")
        written = yaml.safe_load((tmp_path / f"{node.name}.yaml").read_text())
        assert (written["node"], written["region"]) == (node.name, node.region)
        assert settings.model_dump()["node"] == node.name


def test_a_core_keeps_what_the_plan_says_of_its_other_tiers(plan: MeshPlan, tmp_path: Path) -> None:
    core = plan.node("core-eu")
    core.settings["kv"] = {"disk": {"directory": str(tmp_path / "disk")}}
    write_configs(plan, tmp_path, tmp_path)
    kv = load_settings(CoreSettings, tmp_path / "core-eu.yaml").kv
    assert kv.disk.directory == tmp_path / "disk"
    assert kv.index.redis.url == plan.valkey("eu").url
