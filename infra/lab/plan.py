"""The mesh of a laboratory: a node an address, configured as the topology says."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from firstlight.infra.lab.topology import Topology
from firstlight.infra.mesh_config import DRAIN_S, MeshPlan, NodePlan
from firstlight.infra.running import EdgeAddress
from firstlight.infra.valkey import ValkeyPlan
from firstlight.shared.config import over
from firstlight.shared.errors import ConfigError
from firstlight.shared.types import Role

EDGE_PORT, CORE_PORT, LB_PORT, CONTROL_PORT, VALKEY_PORT = 8443, 8500, 8480, 8481, 6379
"""The same at every node: each has an address of its own."""
KEY = "laboratory"
"""What edges ask of clients. It is no secret: nobody outside the laboratory reaches them."""
TENANT = "lab"
_OURS = ("node", "region", "listen", "tls")


def plan_lab(topology: Topology, addresses: Mapping[str, str], run: Path) -> MeshPlan:
    """The plan, with files in `run`. Raises `ConfigError` if no mesh can come of the topology."""
    for role in Role:
        if not topology.of_role(role):
            raise ConfigError(f"nodes: none has the role {role}; a mesh has one at least")
    control = [f"{addresses[lb]}:{CONTROL_PORT}" for lb in topology.of_role("lb")]
    nodes = []
    for role in Role:
        for name in topology.of_role(role):
            settings = _settings(role, addresses[name], control, run)
            given = topology.nodes[name].settings
            _refuse_ours(name, given)
            region = topology.nodes[name].region
            nodes.append(NodePlan(name, role, region, over(settings, given)))
    nodes.sort(key=lambda node: node.role is not Role.LB)
    edges = tuple(
        EdgeAddress(name, topology.nodes[name].region, f"https://{addresses[name]}:{EDGE_PORT}")
        for name in topology.of_role("edge")
    )
    lb_url = f"https://{addresses[topology.of_role('lb')[0]]}:{LB_PORT}"
    return MeshPlan(tuple(nodes), lb_url, edges, _valkeys(topology, addresses))


def write_tenants(run: Path) -> None:
    """The file by which edges know the laboratory's key."""
    _tenants_file(run).write_text(f"{TENANT}: {sha256(KEY.encode()).hexdigest()}\n", "utf-8")


def _tenants_file(run: Path) -> Path:
    return run / "tenants"


def _settings(role: Role, address: str, control: list[str], run: Path) -> dict[str, Any]:
    if role is Role.LB:
        return {
            "http": {"listen": f"{address}:{LB_PORT}", "hosts": [address, "localhost"]},
            "control": {"listen": f"{address}:{CONTROL_PORT}"},
        }
    joins = {"load_balancers": control, "drain_s": DRAIN_S}
    if role is Role.CORE:
        return {"listen": f"{address}:{CORE_PORT}", **joins, "model": {"threads": 1}}
    keys = {"tenants_file": str(_tenants_file(run))}
    return {"listen": f"{address}:{EDGE_PORT}", **joins, "keys": keys, "metrics": True}


def _valkeys(topology: Topology, addresses: Mapping[str, str]) -> tuple[ValkeyPlan, ...]:
    found: dict[str, ValkeyPlan] = {}
    for name in topology.of_role("valkey"):
        region = topology.nodes[name].region
        if region in found:
            raise ConfigError(
                f"nodes.{name}: region {region} has an index server already: {found[region].name}"
            )
        found[region] = ValkeyPlan(name, region, addresses[name], VALKEY_PORT)
    return tuple(found.values())


def _refuse_ours(name: str, given: Mapping[str, Any]) -> None:
    for key in _OURS:
        if key in given:
            raise ConfigError(f"nodes.{name}.settings.{key}: the laboratory says this itself")
