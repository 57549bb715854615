"""A mesh of real processes on this machine: a load balancer, an edge and a core in two regions.

Each region has a Valkey server beside it, for the index of its KV. It is no node: nothing waits for
it once it has answered, and a mesh goes on without it.

`demo`, `up` and the integration tests start it through this. Everything that belongs to one run
lies in one directory below the state directory, which is gone when the mesh has stopped; only the
development CA stays. A run directory whose launcher was killed is removed by the next launcher:
the lock that a living launcher holds on it is free then.
"""

import fcntl
import os
import random
import secrets
import shutil
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import sleep
from types import TracebackType
from typing import IO, Self

import httpx

from firstlight.infra.children import Child, start_child
from firstlight.infra.mesh_config import MeshPlan, Ports, ca_file, plan_mesh, write_configs
from firstlight.infra.ports import free_ports
from firstlight.infra.running import CoreAddress, RunningMesh
from firstlight.infra.valkey import start_valkey, wait_answering
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError, PeerError
from firstlight.shared.types import Role

READY_TIMEOUT_S = 180.0
STOP_GRACE_S = 8.0
START_GRACE_S = 1.0
"""How long a node that was not ready yet may take to end."""
KILL_WAIT_S = 3.0
STARTS_MAX = 3
_POLL_S = 0.05

Say = Callable[[str], None]


Inside = Callable[[str], AbstractContextManager[object]]
"""Where a node or an index server is to be started: entered around its start."""


def _silent(line: str) -> None:
    del line


def _here(name: str) -> AbstractContextManager[object]:
    del name
    return nullcontext()


class Mesh:
    """A running local mesh. Made by `start_mesh`; `stop` it, or use it in a `with` block."""

    def __init__(
        self,
        plan: MeshPlan,
        state: Path,
        run: Path,
        lock: IO[str],
        *,
        inside: Inside = _here,
        environment: Callable[[str], Mapping[str, str] | None] = lambda name: None,
        key: str = "",
    ) -> None:
        """`environment`: of a process, whole; None: ours. `key`: what its edges ask of clients."""
        self.plan = plan
        self.state = state
        self.run = run
        self.children: dict[str, Child] = {}
        """The nodes, which must not end by themselves."""
        self.valkeys: dict[str, Child] = {}
        """The index servers, by name; they may."""
        self.may_end: set[str] = set()
        """Nodes that may end by themselves all the same, for now."""
        self._every_child: list[Child] = []
        self._lock = lock
        self._inside, self._environment = inside, environment
        self._key = key
        self._model = ""

    @property
    def ca_file(self) -> Path:
        """The CA that signed the certificates of all nodes."""
        return ca_file(self.state)

    @property
    def running(self) -> RunningMesh:
        """How clients find this mesh."""
        return RunningMesh(
            os.getpid(),
            self.plan.lb_url,
            self.plan.edges,
            str(self.ca_file),
            self._model,
            self._core_addresses(),
            self._key,
            self._admin_of("lb"),
        )

    def _admin_of(self, node: str) -> str:
        """Where a node said, in its ready line, that it answers its operator."""
        child = self.children.get(node)
        return "" if child is None else str((child.ready or {}).get("admin", ""))

    def _core_addresses(self) -> tuple[CoreAddress, ...]:
        cores = [node for node in self.plan.nodes if node.role is Role.CORE]
        return tuple(
            CoreAddress(core.name, core.region, self._admin_of(core.name)) for core in cores
        )

    def ended(self) -> frozenset[str]:
        """Nodes that have ended by themselves."""
        return frozenset(child.name for child in self._dead())

    def _dead(self) -> list[Child]:
        """Who ended and should not have; also while another thread kills and starts nodes."""
        dead = [child for child in list(self.children.values()) if not child.alive]
        return [
            child
            for child in dead
            if self.children.get(child.name) is child and child.name not in self.may_end
        ]

    def start_node(self, name: str) -> Child:
        """Start one node of the plan, or start it again after it has ended."""
        node = self.plan.node(name)
        if name in self.children and self.children[name].alive:
            raise ConfigError(f"{name} runs already")
        config = self.run / f"{name}.yaml"
        arguments = [node.role.value, "--config", str(config), "--with-parent"]
        with self._inside(name):
            child = start_child(name, arguments, self.run, self._environment(name))
        self.children[name] = child
        self._every_child.append(child)
        return child

    def start_valkeys(self) -> None:
        """Start the index server of every region that has none; wait until they answer."""
        for plan in self.plan.valkeys:
            if plan.name not in self.valkeys or not self.valkeys[plan.name].alive:
                self.start_valkey(plan.name)
        for plan in self.plan.valkeys:
            wait_answering(self.valkeys[plan.name], plan)

    def start_valkey(self, name: str) -> Child:
        """Start one index server of the plan, or start it again after it has ended."""
        plan = self.plan.valkey_named(name)
        with self._inside(name):
            server = start_valkey(plan, self.run, environment=self._environment(name))
        self.valkeys[name] = server
        self._every_child.append(server)
        return server

    def wait_ready(
        self, names: list[str], say: Say = _silent, timeout_s: float = READY_TIMEOUT_S
    ) -> None:
        """Wait until these nodes are ready; `ConfigError` names one that died or is too slow."""
        begun = monotonic_s()
        waiting = list(names)
        while waiting:
            for name in [n for n in waiting if self.children[n].poll_ready()]:
                waiting.remove(name)
                say(f"{name} is ready after {monotonic_s() - begun:.1f} s")
            self.check_alive()
            if waiting and monotonic_s() - begun > timeout_s:
                tails = " | ".join(
                    f"{n}: {' '.join(self.children[n].tail()[-2:])}" for n in waiting
                )
                raise ConfigError(f"not ready after {timeout_s:.0f} s: {tails}")
            if waiting:
                sleep(_POLL_S)

    def check_alive(self) -> None:
        """Raise `ConfigError` with the last words of a node that has ended by itself."""
        for child in self._dead():
            raise ConfigError(child.obituary("unasked"))

    def wait_linked(self, timeout_s: float = 20.0, away: Collection[str] = ()) -> None:
        """Wait until every edge is linked to every core and the load balancer knows them all.

        `away`: nodes that nobody can expect to be there.
        """
        verify = ssl.create_default_context(cafile=str(self.ca_file))
        deadline = monotonic_s() + timeout_s
        said = {"authorization": f"Bearer {self._key}"} if self._key else {}
        with httpx.Client(verify=verify, timeout=2.0, trust_env=False, headers=said) as client:
            missing = self._unlinked(client, away)
            while missing:
                self.check_alive()
                if monotonic_s() > deadline:
                    raise PeerError(
                        f"the mesh did not come together in {timeout_s:.0f} s: {missing}"
                    )
                sleep(2 * _POLL_S)
                missing = self._unlinked(client, away)
            edges = [edge for edge in self.plan.edges if edge.node not in away]
            for edge in edges[:1]:
                models = client.get(f"{edge.url}/v1/models").json()["data"]
                self._model = str(models[0]["id"])

    def _unlinked(self, client: httpx.Client, away: Collection[str]) -> str:
        """What is still missing; empty if nothing is."""
        try:
            for edge in self.plan.edges:
                if edge.node in away:
                    continue
                answer = client.get(f"{edge.url}/readyz")
                if answer.status_code != 200:
                    return f"{edge.node} is not ready: {answer.text[:200]}"
            view = client.get(f"{self.plan.lb_url}/v1/mesh").json()["data"]
            return self.plan.missing_from({node["node"]: node["rtt_ms"] for node in view}, away)
        except (httpx.HTTPError, ValueError, KeyError) as e:
            return f"{type(e).__name__}: {e}"

    def kill(self, name: str) -> Child:
        """End a node or index server as a crash would (SIGKILL); it may be started again.

        It is no longer expected to live.
        """
        child = self.children.pop(name, None) or self.valkeys.pop(name, None)
        if child is None:
            known = ", ".join([*self.children, *self.valkeys])
            raise ConfigError(f"no running node is called {name!r}: {known}")
        child.kill()
        return child

    def start(self, say: Say = _silent) -> None:
        """Start all of it and wait until it can answer; on an error call `stop`."""
        self.start_valkeys()
        for name in self.plan.names:
            self.start_node(name)
        self.wait_ready(list(self.plan.names), say)
        self.wait_linked()
        self.running.write(self.state)

    def stop(self) -> int:
        """End all that was started, remove the run directory; returns how many processes remain."""
        left = self.end_processes()
        self.remove()
        return left

    def end_processes(self) -> int:
        """End all that was started; returns how many processes remain."""
        self._every_child = _end(self._every_child)
        self.children, self.valkeys = {}, {}
        return len(self._every_child)

    def remove(self) -> None:
        """Remove what lies on disk."""
        self.running.remove(self.state)
        shutil.rmtree(self.run, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> Self:
        """The mesh itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Stop the mesh."""
        self.stop()


def start_mesh(state: Path, say: Say = _silent, histories: Path | None = None) -> Mesh:
    """Start a mesh and wait until it can answer. On any failure nothing of it is left.

    Ports that another process took in between cost a fresh start, at most two times. `histories`:
    where nodes note what happens, if they shall.
    """
    remove_stale_runs(state)
    for attempt in range(1, STARTS_MAX + 1):
        mesh = new_mesh(state, histories=histories)
        try:
            mesh.start(say)
        except ConfigError as e:
            mesh.stop()
            if attempt == STARTS_MAX or "in use" not in str(e):
                raise
            say("a port was taken in between; starting again with others")
        except BaseException:
            mesh.stop()
            raise
        else:
            return mesh
    raise AssertionError("unreachable: the last attempt returns or raises")


def new_mesh(
    state: Path,
    plan_of: Callable[[Ports], MeshPlan] = plan_mesh,
    histories: Path | None = None,
) -> Mesh:
    """A mesh whose processes are not started yet; `plan_of` plans it with free ports."""
    run, lock = new_run(state)
    plan = plan_of(lambda count: free_ports(count, random.SystemRandom()))
    write_configs(plan, state, run, histories)
    return Mesh(plan, state, run, lock)


def new_run(state: Path) -> tuple[Path, IO[str]]:
    """A run directory, and the lock that says that its launcher lives. Raises `ConfigError`."""
    run = state / "runs" / secrets.token_hex(4)
    try:
        run.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"{state}: the state directory cannot be written: {error.strerror}; "
            "FIRSTLIGHT_STATE_DIR names another"
        ) from error
    lock = (run / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return run, lock


def remove_stale_runs(state: Path, end: Callable[[Path], object] | None = None) -> list[str]:
    """Remove run directories whose launcher has died; returns their names.

    `end` is called before with each, for what else is left of that run.
    """
    removed = []
    for run in sorted((state / "runs").glob("*")):
        try:
            with (run / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if end is not None:
                    end(run)
                shutil.rmtree(run, ignore_errors=True)
                removed.append(run.name)
        except OSError:
            continue
    return removed


def _end(children: Sequence[Child]) -> list[Child]:
    """SIGTERM, a while to end, then SIGKILL; returns those that are still there.

    Who was not ready yet may be loading a model, which nothing stops, and has nothing to finish.
    """
    for child in children:
        child.terminate()
    begun = monotonic_s()
    for child in sorted(children, key=lambda child: child.ready is not None):
        grace_s = STOP_GRACE_S if child.ready is not None else START_GRACE_S
        if not child.wait(begun + grace_s - monotonic_s()):
            child.kill()
    left = [child for child in children if not child.wait(KILL_WAIT_S)]
    for child in children:
        child.close()
    return left
