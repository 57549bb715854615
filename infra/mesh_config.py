"""What a local mesh consists of, and the configuration file of each of its nodes."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from firstlight.infra.running import EdgeAddress
from firstlight.infra.valkey import ValkeyPlan
from firstlight.shared.tls import ensure_ca
from firstlight.shared.types import Role

Ports = Callable[[int], list[int]]
"""Gives as many different free ports as it is asked for."""
HOST = "127.0.0.1"
REGIONS = ("eu", "us")
DRAIN_S = 2.0
"""Of a local node: who ends a mesh does not want to wait for its answers."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node: its name, what it is, where it stands, and its configuration."""

    name: str
    role: Role
    region: str
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MeshPlan:
    """All nodes of a mesh, the load balancer first, and the server of each region's KV index."""

    nodes: tuple[NodePlan, ...]
    lb_url: str
    edges: tuple[EdgeAddress, ...]
    valkeys: tuple[ValkeyPlan, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return tuple(node.name for node in self.nodes)

    @property
    def peers(self) -> tuple[NodePlan, ...]:
        """The nodes that the load balancer should hear of."""
        return tuple(node for node in self.nodes if node.role is not Role.LB)

    def missing_from(
        self, round_trips: Mapping[str, Mapping[str, float]], away: Collection[str] = ()
    ) -> str:
        """What the load balancer's view lacks: a node, or an edge's round trip to a core.

        `round_trips`: of every node in the view, what it measured to others. Nobody is missing who
        is `away`. Empty if all is there.
        """
        peers = [node for node in self.peers if node.name not in away]
        for node in peers:
            if node.name not in round_trips:
                return f"the load balancer has not heard of {node.name}"
        for edge in self.edges:
            for core in peers if edge.node not in away else ():
                if core.role is Role.CORE and core.name not in round_trips[edge.node]:
                    return f"{edge.node} is not linked to {core.name}"
        return ""

    def valkey(self, region: str) -> ValkeyPlan:
        """The index server of `region`; `StopIteration` if it has none."""
        return next(valkey for valkey in self.valkeys if valkey.region == region)

    def valkey_named(self, name: str) -> ValkeyPlan:
        """The index server called `name`; `StopIteration` if there is none."""
        return next(valkey for valkey in self.valkeys if valkey.name == name)

    def has_valkey(self, region: str) -> bool:
        """Whether a region has an index server."""
        return any(valkey.region == region for valkey in self.valkeys)

    def node(self, name: str) -> NodePlan:
        """The node called `name`; `KeyError` if the plan has none."""
        return next(node for node in self.nodes if node.name == name)


def plan_mesh(ports: Ports) -> MeshPlan:
    """A load balancer; an edge, a core and an index server a region."""
    lb_http, lb_control, *rest = ports(2 + 3 * len(REGIONS))
    control = f"{HOST}:{lb_control}"
    lb = {
        "http": {"listen": f"{HOST}:{lb_http}"},
        "control": {"listen": control},
        "admin": f"{HOST}:0",
    }
    nodes = [NodePlan("lb", Role.LB, REGIONS[0], lb)]
    edges, valkeys = [], []
    for index, region in enumerate(REGIONS):
        edge_port, core_port, valkey_port = rest[3 * index : 3 * index + 3]
        edge = {
            "listen": f"{HOST}:{edge_port}",
            "load_balancers": [control],
            "drain_s": DRAIN_S,
        }
        core = {
            "listen": f"{HOST}:{core_port}",
            "load_balancers": [control],
            "drain_s": DRAIN_S,
            "model": {"threads": 1},
        }
        nodes.append(NodePlan(f"edge-{region}", Role.EDGE, region, edge))
        nodes.append(NodePlan(f"core-{region}", Role.CORE, region, core))
        edges.append(EdgeAddress(f"edge-{region}", region, f"https://{HOST}:{edge_port}"))
        valkeys.append(ValkeyPlan(f"valkey-{region}", region, HOST, valkey_port))
    return MeshPlan(tuple(nodes), f"https://{HOST}:{lb_http}", tuple(edges), tuple(valkeys))


def tls_directory(state: Path) -> Path:
    """Where the development CA of this machine stays between runs."""
    return state / "tls"


def ca_file(state: Path) -> Path:
    """The certificate of the development CA, which is made if there is none."""
    return ensure_ca(tls_directory(state)).cert


def write_configs(plan: MeshPlan, state: Path, run: Path, histories: Path | None = None) -> None:
    """Write NAME.yaml of every node into `run`; `histories`: where nodes note what happens."""
    noting = {} if histories is None else {"history": str(histories)}
    for node in plan.nodes:
        named = {"node": node.name, "region": node.region}
        tls = {"tls": {"directory": str(tls_directory(state))}}
        settings = named | noting | node.settings | tls
        if node.role is Role.CORE and plan.has_valkey(node.region):
            index = {"index": {"redis": _redis(plan.valkey(node.region), run)}}
            settings["kv"] = settings.get("kv", {}) | index
        if node.role is Role.LB and plan.has_valkey(node.region):
            settings["drains"] = {"redis": _redis(plan.valkey(node.region), run)}
        text = yaml.safe_dump(settings, sort_keys=False)
        (run / f"{node.name}.yaml").write_text(text, encoding="utf-8")


def _redis(valkey: ValkeyPlan, run: Path) -> dict[str, str]:
    return {"url": valkey.url, "password_file": str(valkey.password_file(run))}
