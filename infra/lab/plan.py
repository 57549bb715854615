"""The mesh of a laboratory: a node an address, configured as the topology says."""

from collections.abc import Mapping
from dataclasses import dataclass
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
"""The same at every node that has an address of its own."""
SERVICES = (
    ("clients", "edge"),
    ("links", "core"),
    ("http", "lb"),
    ("control", "lb"),
    ("index", "valkey"),
)
"""What nodes listen for, and of which role they are."""
_PORTS = {
    "clients": EDGE_PORT,
    "links": CORE_PORT,
    "http": LB_PORT,
    "control": CONTROL_PORT,
    "index": VALKEY_PORT,
}
KEY = "laboratory"
"""What edges ask of clients. It is no secret: nobody outside the laboratory reaches them."""
TENANT = "lab"
_OURS = ("node", "region", "listen", "advertise", "tls", "faults")
DISK_SHARE = 0.9
"""Of a disk of its own, how much a core may fill with blocks."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one service of a node is."""

    host: str
    port: int
    """Where it listens."""
    public_port: int
    """Where others reach it."""

    @property
    def listen(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"

    @property
    def public(self) -> str:
        """host:port."""
        return f"{self.host}:{self.public_port}"


Places = Mapping[tuple[str, str], Place]
"""By node and service."""


def places_at(topology: Topology, addresses: Mapping[str, str]) -> Places:
    """Of nodes that have addresses of their own."""
    return {
        (name, service): Place(addresses[name], _PORTS[service], _PORTS[service])
        for service, role in SERVICES
        for name in topology.of_role(role)
    }


def plan_lab(topology: Topology, places: Places, run: Path) -> MeshPlan:
    """The plan, with files in `run`. Raises `ConfigError` if no mesh can come of the topology."""
    for role in Role:
        if not topology.of_role(role):
            raise ConfigError(f"nodes: none has the role {role}; a mesh has one at least")
    control = [places[lb, "control"].public for lb in topology.of_role("lb")]
    nodes = []
    for role in Role:
        for name in topology.of_role(role):
            settings = _settings(role, name, places, control, run)
            settings["faults"] = str(faults_file(run, name))
            given = topology.nodes[name].settings
            if (mb := topology.nodes[name].disk_mb) is not None:
                settings["kv"] = {"disk": _disk(run, name, mb)}
            _refuse_ours(name, given)
            region = topology.nodes[name].region
            nodes.append(NodePlan(name, role, region, over(settings, given)))
    nodes.sort(key=lambda node: node.role is not Role.LB)
    edges = tuple(
        EdgeAddress(name, topology.nodes[name].region, f"https://{places[name, 'clients'].public}")
        for name in topology.of_role("edge")
    )
    lb_url = f"https://{places[topology.of_role('lb')[0], 'http'].public}"
    return MeshPlan(tuple(nodes), lb_url, edges, _valkeys(topology, places))


def write_tenants(run: Path) -> None:
    """The file by which edges know the laboratory's key."""
    _tenants_file(run).write_text(f"{TENANT}: {sha256(KEY.encode()).hexdigest()}\n", "utf-8")


def faults_file(run: Path, name: str) -> Path:
    """The socket by which a node is made to fail."""
    return run / f"{name}.faults"


def disk_directory(run: Path, name: str) -> Path:
    """Where a node that has a disk of its own finds it."""
    return run / "disks" / name


def _disk(run: Path, name: str, mb: float) -> dict[str, Any]:
    directory = str(disk_directory(run, name) / "kv")
    return {"directory": directory, "bytes_max": int(mb * DISK_SHARE * (1 << 20))}


def _tenants_file(run: Path) -> Path:
    return run / "tenants"


def _settings(
    role: Role, name: str, places: Places, control: list[str], run: Path
) -> dict[str, Any]:
    if role is Role.LB:
        http = places[name, "http"]
        return {
            "http": {"listen": http.listen, "hosts": [http.host, "localhost"]},
            "control": {"listen": places[name, "control"].listen},
        }
    place = places[name, "links" if role is Role.CORE else "clients"]
    joins = {
        "listen": place.listen,
        "advertise": place.public,
        "load_balancers": control,
        "drain_s": DRAIN_S,
    }
    if role is Role.CORE:
        return {**joins, "model": {"threads": 1}}
    return {**joins, "keys": {"tenants_file": str(_tenants_file(run))}, "metrics": True}


def _valkeys(topology: Topology, places: Places) -> tuple[ValkeyPlan, ...]:
    found: dict[str, ValkeyPlan] = {}
    for name in topology.of_role("valkey"):
        region = topology.nodes[name].region
        if region in found:
            raise ConfigError(
                f"nodes.{name}: region {region} has an index server already: {found[region].name}"
            )
        place = places[name, "index"]
        found[region] = ValkeyPlan(name, region, place.host, place.port)
    return tuple(found.values())


def _refuse_ours(name: str, given: Mapping[str, Any]) -> None:
    for key in _OURS:
        if key in given:
            raise ConfigError(f"nodes.{name}.settings.{key}: the laboratory says this itself")
