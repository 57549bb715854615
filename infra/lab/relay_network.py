"""The network of a laboratory without root: loopback, with a relay before every service."""

import json
import random
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from firstlight.infra.children import Child, start_python
from firstlight.infra.lab.control import Control
from firstlight.infra.lab.network import end_router, wait_ready
from firstlight.infra.lab.plan import SERVICES, Place, Places
from firstlight.infra.lab.relays import refuse_impossible
from firstlight.infra.lab.topology import Topology
from firstlight.infra.ports import free_ports
from firstlight.shared.errors import ConfigError

HOST = "127.0.0.1"


@dataclass(slots=True)
class RelayNetwork:
    """Relays that run; `close` it. Made by `start_relays`."""

    addresses: Mapping[str, str]
    control_file: Path
    router: Child | None

    @property
    def descriptors(self) -> Mapping[str, int]:
        """Of namespaces: none."""
        return {}

    def inside(self, node: str) -> AbstractContextManager[None]:
        """Everyone is in the same place here."""
        del node
        return nullcontext()

    def control(self) -> Control:
        """A connection to the relays."""
        return Control(self.control_file)

    def check_alive(self) -> None:
        """Raise `ConfigError` with the relays' last words if they have ended."""
        if self.router is not None and not self.router.alive:
            raise ConfigError(self.router.obituary("unasked"))

    def close(self) -> list[Child]:
        """End the relays; returns them if they remain."""
        left = end_router(self.router)
        self.router = None
        return left


def relay_places(topology: Topology) -> Places:
    """A port for each service to listen at, and one for the relay before it."""
    wanted = [(name, service) for service, role in SERVICES for name in topology.of_role(role)]
    ports = free_ports(2 * len(wanted), random.SystemRandom())
    places = {}
    for index, (name, service) in enumerate(wanted):
        port, relayed = ports[2 * index : 2 * index + 2]
        near = service == "index"  # cores ask only that of their own region
        places[name, service] = Place(HOST, port, port if near else relayed)
    return places


def start_relays(
    topology: Topology, file: Path, run: Path, places: Places, environment: Mapping[str, str]
) -> RelayNetwork:
    """Start the relays. Raises `ConfigError`, also for links that relays cannot be."""
    refuse_impossible(topology)
    control_file = run / "router.sock"
    relays = [
        {
            "node": name,
            "host": place.host,
            "port": place.public_port,
            "target_port": place.port,
            "udp": service == "clients",
        }
        for (name, service), place in places.items()
        if place.public_port != place.port
    ]
    config = {
        "topology": str(file),
        "control": str(control_file),
        "run": str(run),
        "relays": relays,
    }
    config_file = run / "relays.json"
    config_file.write_text(json.dumps(config), encoding="utf-8")
    router = start_python(
        "router", "firstlight.infra.lab.relays", [str(config_file)], run, environment=environment
    )
    addresses = dict.fromkeys(topology.nodes, HOST)
    addresses |= {name: place.public for (name, _), place in places.items()}
    network = RelayNetwork(addresses, control_file, router)
    try:
        wait_ready(router)
    except BaseException:
        network.close()
        raise
    return network
