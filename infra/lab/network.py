"""The network of a laboratory: a namespace a node, their addresses, and the router between them."""

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep

from firstlight.infra.children import Child, start_python
from firstlight.infra.lab.control import Control
from firstlight.infra.lab.namespaces import Namespace, attach, missing, new_namespace, set_ipv4
from firstlight.infra.lab.topology import OPERATOR, Topology
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError

START_S = 20.0
STOP_S = 3.0
_POLL_S = 0.01


def addresses(topology: Topology) -> dict[str, str]:
    """The IPv4 address of every node and of the operator; the third number is the region's."""
    given = {OPERATOR: "10.77.0.1"}
    for number, region in enumerate(topology.regions, 1):
        for index, node in enumerate(topology.names_of(region), 1):
            given[node] = f"10.77.{number}.{index}"
    return given


def address_v6(address: str) -> str:
    """The IPv6 address of whoever has this IPv4 address."""
    _, _, region, index = address.split(".")
    return f"fd77::{region}:{index}"


@dataclass(slots=True)
class Network:
    """Namespaces and a router that runs; `close` it. Made by `start_network`."""

    addresses: Mapping[str, str]
    control_file: Path
    namespaces: dict[str, Namespace] = field(default_factory=dict)
    router: Child | None = None

    @property
    def descriptors(self) -> Mapping[str, int]:
        """By which this process holds each node's namespace."""
        return {name: namespace.fd for name, namespace in self.namespaces.items()}

    def inside(self, node: str) -> AbstractContextManager[None]:
        """A block on this thread that runs in a node's namespace. Raises `ConfigError`."""
        return self.namespace(node).inside()

    def namespace(self, node: str) -> Namespace:
        """Where a node is. Raises `ConfigError` for a name that nobody has."""
        try:
            return self.namespaces[node]
        except KeyError:
            known = ", ".join(self.namespaces)
            raise ConfigError(f"no node is called {node!r}: {known}") from None

    def control(self) -> Control:
        """A connection to the router."""
        return Control(self.control_file)

    def check_alive(self) -> None:
        """Raise `ConfigError` with the router's last words if it has ended."""
        if self.router is not None and not self.router.alive:
            raise ConfigError(self.router.obituary("unasked"))

    def close(self) -> list[Child]:
        """End the router, let go of the namespaces; returns the router if it remains."""
        left = end_router(self.router)
        for namespace in self.namespaces.values():
            namespace.close()
        self.namespaces, self.router = {}, None
        return left


def start_network(
    topology: Topology, file: Path, run: Path, environment: Mapping[str, str] | None = None
) -> Network:
    """Make the namespaces of a topology that was read from `file`, and start the router.

    Its files lie in `run`. Raises `ConfigError`; then nothing is left.
    """
    if problem := missing():
        raise ConfigError(f"no namespaces here: {problem}; --relay can do without, and less")
    network = Network(addresses(topology), run / "router.sock")
    try:
        with ExitStack() as devices:
            nodes, fds = [], []
            for node, address in network.addresses.items():
                namespace = network.namespaces[node] = new_namespace()
                set_ipv4(namespace, topology.tcp.sysctls)
                given = [f"{address}/16", f"{address_v6(address)}/64"]
                fd = attach(namespace, given)
                devices.callback(os.close, fd)
                fds.append(fd)
                nodes.append({"name": node, "fd": fd, "addresses": given})
            config = {"topology": str(file), "control": str(network.control_file), "nodes": nodes}
            config_file = run / "router.json"
            config_file.write_text(json.dumps(config), encoding="utf-8")
            network.router = start_python(
                "router",
                "firstlight.infra.lab.router",
                [str(config_file)],
                run,
                environment=environment,
                pass_fds=fds,
            )
        wait_ready(network.router)
    except BaseException:
        network.close()
        raise
    return network


def end_router(router: Child | None) -> list[Child]:
    """End it; returns it if it remains."""
    if router is None:
        return []
    router.terminate()
    if not router.wait(STOP_S):
        router.kill()
    left = [] if router.wait(STOP_S) else [router]
    router.close()
    return left


def wait_ready(router: Child) -> None:
    """Wait until it serves. Raises `ConfigError`."""
    deadline = monotonic_s() + START_S
    while not router.poll_ready():
        if monotonic_s() > deadline:
            raise ConfigError(f"the router was not ready within {START_S:.0f} s")
        sleep(_POLL_S)
