"""A laboratory: a network of namespaces with a whole mesh of real processes in it.

Everything of one laboratory lies in its run directory, certificates included, and that is the state
directory of all its processes: so `firstlight chat` in a node's shell finds this mesh and no other.
A laboratory whose launcher was killed leaves nothing in the kernel (see `namespaces`); what it left
on disk, and processes that could not end, are removed by the next one.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import httpx

from firstlight.infra.lab.cgroups import remove_groups
from firstlight.infra.lab.disks import Disk, new_disk
from firstlight.infra.lab.leftovers import end_marked
from firstlight.infra.lab.network import Network, addresses, start_network
from firstlight.infra.lab.plan import KEY, disk_directory, places_at, plan_lab, write_tenants
from firstlight.infra.lab.relay_network import RelayNetwork, relay_places, start_relays
from firstlight.infra.lab.running import RunningLab, lab_state
from firstlight.infra.lab.topology import OPERATOR, Topology
from firstlight.infra.lab.topology_file import load_topology
from firstlight.infra.lab.who import NODE_VARIABLE
from firstlight.infra.mesh import Mesh, new_run, remove_stale_runs
from firstlight.infra.mesh_config import write_configs
from firstlight.infra.status import ANSWER_S, DOCUMENT_BYTES_MAX
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import environment_of

Say = Callable[[str], None]


class Lab:
    """A running laboratory. Made by `start_lab`; `stop` it, or use it in a `with` block."""

    def __init__(
        self,
        topology: Topology,
        file: Path,
        run: Path,
        lock: IO[str],
        *,
        relay: bool,
        histories: Path | None,
    ) -> None:
        """Make its network. On an error nothing is left but the run directory."""
        self.topology, self.file, self.run = topology, file, run
        self.disks: dict[str, Disk] = {}
        """Of nodes that have one of their own; without root they share this machine's."""
        self._begun_s = monotonic_s()
        places = relay_places(topology) if relay else places_at(topology, addresses(topology))
        plan = plan_lab(topology, places, run)
        write_tenants(run)
        write_configs(plan, run, run, histories)
        self.network: Network | RelayNetwork = (
            start_relays(topology, file, run, places, environment_of(run))
            if relay
            else start_network(topology, file, run, environment_of(run))
        )
        self.mesh = Mesh(
            plan, run, run, lock, inside=self._at, environment=self._environment, key=KEY
        )
        try:
            for node in () if relay else topology.of_role("core"):
                if (mb := topology.nodes[node].disk_mb) is not None:
                    self.disks[node] = new_disk(disk_directory(run, node), mb)
        except BaseException:
            self._let_go()
            raise

    def inside(self, node: str) -> AbstractContextManager[None]:
        """A block on this thread that runs in a node's namespace. Raises `ConfigError`."""
        return self.network.inside(node)

    @contextmanager
    def _at(self, node: str) -> Iterator[None]:
        """Where a node is to be started: its namespace, and where its disk is."""
        with ExitStack() as place:
            place.enter_context(self.inside(node))
            if node in self.disks:
                place.enter_context(self.disks[node].inside())
            yield

    def _environment(self, node: str) -> dict[str, str]:
        return environment_of(self.run) | {NODE_VARIABLE: node}

    def start(self, say: Say) -> None:
        """Start every process and wait until the mesh can answer."""
        with self.inside(OPERATOR):
            self.mesh.start(say)
        self.publish()

    def publish(self) -> None:
        """Write `lab.json`; again when a process has been started or has ended."""
        children = {**self.mesh.children, **self.mesh.valkeys}
        assert self.network.router is not None
        processes = {name: child.process.pid for name, child in children.items()}
        RunningLab(
            os.getpid(),
            str(self.file),
            str(self.network.control_file),
            self.network.addresses,
            self.network.descriptors,
            processes | {"router": self.network.router.process.pid},
        ).write(self.run)

    def router_share(self) -> float:
        """Of one CPU, that the router has taken since the laboratory began."""
        router = self.network.router
        assert router is not None
        ticks = Path(f"/proc/{router.process.pid}/stat").read_text("utf-8").rpartition(")")[2]
        user, system = ticks.split()[11:13]
        used_s = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        return used_s / (monotonic_s() - self._begun_s)

    def ended(self) -> frozenset[str]:
        """Nodes that have ended by themselves, and the router if it has."""
        router = self.network.router
        gone = {"router"} if router is not None and not router.alive else set()
        return self.mesh.ended() | gone

    def check_alive(self) -> None:
        """Raise `ConfigError` with the last words of what has ended by itself."""
        self.network.check_alive()
        self.mesh.check_alive()

    def visit(self, node: str, url: str) -> bytes | None:
        """What a node answers itself, at a URL on its own loopback; None: nothing."""
        try:
            with self.inside(node):
                answer = httpx.get(url, timeout=ANSWER_S, trust_env=False)
        except httpx.HTTPError:
            return None
        fits = answer.status_code == 200 and len(answer.content) <= DOCUMENT_BYTES_MAX
        return answer.content if fits else None

    def stop(self) -> int:
        """End everything, remove the run directory; returns how many processes remain."""
        left = self.mesh.end_processes() + self._let_go() + len(end_marked(self.run))
        remove_groups(self.run.name)
        self.mesh.remove()
        return left

    def _let_go(self) -> int:
        """Of network and disks; returns how many processes remain."""
        for disk in self.disks.values():
            disk.close()
        self.disks = {}
        return len(self.network.close())

    def __enter__(self) -> Self:
        """The laboratory itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Stop it."""
        self.stop()


def _silent(line: str) -> None:
    del line


def _end_stale(run: Path) -> None:
    """What a laboratory left whose launcher was killed."""
    end_marked(run)
    remove_groups(run.name)


def start_lab(
    file: Path,
    state: Path,
    say: Say = _silent,
    *,
    relay: bool = False,
    histories: Path | None = None,
) -> Lab:
    """Start what a topology file describes and wait until it can answer.

    `relay`: without namespaces, which needs no root and can less. `histories`: where nodes note
    what happens, if they shall. Raises `ConfigError` or `PeerError`; then nothing of it is left.
    """
    topology = load_topology(file)
    remove_stale_runs(lab_state(state), _end_stale)
    run, lock = new_run(lab_state(state))
    try:
        lab = Lab(topology, file.absolute(), run, lock, relay=relay, histories=histories)
    except BaseException:
        shutil.rmtree(run, ignore_errors=True)
        lock.close()
        raise
    try:
        lab.start(say)
    except BaseException:
        lab.stop()
        raise
    return lab
