"""Our own server for a measurement: one core, one edge, and what they need to find each other."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from firstlight.infra.mesh import Mesh, new_mesh
from firstlight.infra.mesh_config import DRAIN_S, HOST, MeshPlan, NodePlan, Ports
from firstlight.infra.running import EdgeAddress
from firstlight.infra.valkey import ValkeyPlan
from firstlight.shared.types import Role

REGION = "local"
ENGINE = {"sequences_max": 64, "step_tokens_max": 640, "blocks": 2048, "waiting_max": 256}
"""No load here waits for a place, and none is refused."""


@dataclass(frozen=True, slots=True)
class Own:
    """It runs: where it is asked, and its processes."""

    url: str
    verify: ssl.SSLContext
    core: int
    edge: int
    pids: tuple[int, ...]
    """Of all that was started."""


def plan(ports: Ports, threads: int) -> MeshPlan:
    """A load balancer, a core with `threads`, an edge, and the region's index server."""
    http, control, edge, core, valkey = ports(5)
    join = f"{HOST}:{control}"
    nodes = (
        NodePlan("lb", Role.LB, REGION, {"http": {"listen": f"{HOST}:{http}"}}),
        NodePlan("edge", Role.EDGE, REGION, {"listen": f"{HOST}:{edge}"}),
        NodePlan("core", Role.CORE, REGION, {"listen": f"{HOST}:{core}"}),
    )
    nodes[0].settings["control"] = {"listen": join}
    for node in nodes[1:]:
        node.settings.update(load_balancers=[join], drain_s=DRAIN_S)
    nodes[2].settings.update(model={"threads": threads}, engine=dict(ENGINE))
    address = EdgeAddress("edge", REGION, f"https://{HOST}:{edge}")
    index = ValkeyPlan("valkey", REGION, HOST, valkey)
    return MeshPlan(nodes, f"https://{HOST}:{http}", (address,), (index,))


@contextmanager
def own_mesh(state: Path, threads: int, say: Callable[[str], None]) -> Iterator[Own]:
    """Start it, and end it with the block. Raises `ConfigError` if it does not come up."""
    with new_mesh(state, lambda ports: plan(ports, threads)) as mesh:
        _start(mesh, say)
        started = {**mesh.children, **mesh.valkeys}
        pids = {name: child.process.pid for name, child in started.items()}
        verify = ssl.create_default_context(cafile=str(mesh.ca_file))
        url = f"{mesh.plan.edges[0].url}/v1"
        yield Own(url, verify, pids["core"], pids["edge"], tuple(pids.values()))


def _start(mesh: Mesh, say: Callable[[str], None]) -> None:
    mesh.start_valkeys()
    for name in mesh.plan.names:
        mesh.start_node(name)
    mesh.wait_ready(list(mesh.plan.names), say)
    mesh.wait_linked()
