"""All relays of a laboratory without root, as one process with the router's control socket.

    python -m firstlight.infra.lab.relays CONFIG.json

Who speaks is found by the process that has the other end; a process that is not the laboratory's
stands where the topology's first client does. It ends when its standard input does.
"""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firstlight.infra.lab.links import Shape
from firstlight.infra.lab.paths import Path as Way
from firstlight.infra.lab.paths import Paths
from firstlight.infra.lab.relay import Relay, RelayPlan
from firstlight.infra.lab.topology import OPERATOR, Topology
from firstlight.infra.lab.topology_file import load_topology
from firstlight.infra.lab.who import Kind, Processes, owner
from firstlight.shared import lifecycle
from firstlight.shared.door import LINE_BYTES_MAX, answer_line, socket_name
from firstlight.shared.errors import ConfigError

CHANGEABLE = {"rtt_ms", "delay_ms", "jitter_ms"}
CANNOT = "relays can delay and cut: no loss, no reordering, no limits, no addresses of their own"


def refuse_impossible(topology: Topology) -> None:
    """Raise `ConfigError` for a link that relays cannot be, or a kernel that they cannot set."""
    for name in topology.tcp.sysctls:
        raise ConfigError(f"tcp: {name} is this whole machine's without namespaces")
    for one in topology.nodes:
        for other in set(topology.nodes) - {one}:
            if lacking := _lacking(topology.shape(one, other)):
                raise ConfigError(f"links: from {one} to {other}: {lacking}: {CANNOT}")


def _lacking(shape: Shape) -> str:
    if shape.loss:
        return f"loss {shape.loss:g}"
    if shape.reorder:
        return f"reorder {shape.reorder:g}"
    return "" if shape.bits_per_s is None else f"mbit_per_s {shape.bits_per_s / 1e6:g}"


class Ways:
    """Finds the ways between whoever comes and a node."""

    def __init__(self, topology: Topology, run: Path) -> None:
        self.paths = Paths(topology)
        self._processes = Processes(run)
        self._lock = threading.Lock()
        strangers = topology.of_role("client") or topology.of_role("edge")
        self._stranger = strangers[0]

    def of(self, plan: RelayPlan, kind: Kind, port: int) -> tuple[Way, Way]:
        """There and back. From any thread."""
        with self._lock:
            known = {**self._processes.now(), os.getppid(): OPERATOR}
            name = owner(kind, port, plan.port, known) or self._stranger
            return self.paths.path(name, plan.node), self.paths.path(plan.node, name)

    def command(self, command: dict[str, Any]) -> dict[str, Any]:
        """As the router's. Raises `ConfigError`."""
        if command.get("do") == "stats":
            return {"relayed": True, "paths": [path.told() for path in self.paths]}
        link = command.get("link")
        if isinstance(link, Mapping) and (beyond := set(link) - CHANGEABLE):
            raise ConfigError(f"link.{min(beyond)}: {CANNOT}")
        return self.paths.command(command)


async def _control(ways: Ways, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while line := await reader.readline():
            writer.write(answer_line(line, ways.command))
            await writer.drain()
    except (OSError, ValueError):  # gone, or a line that is too long
        pass
    finally:
        writer.close()


async def main(config: Mapping[str, Any], stop: asyncio.Event) -> None:
    """Relay until `stop`. Raises `ConfigError`."""
    topology = load_topology(Path(config["topology"]))
    ways = Ways(topology, Path(config["run"]))
    relays = []
    for told in config["relays"]:
        plan = RelayPlan(**told)

        def between(kind: str, port: int, plan: RelayPlan = plan) -> tuple[Way, Way]:
            return ways.of(plan, "udp" if kind == "udp" else "tcp", port)

        relays.append(Relay(plan, between))
    try:
        for relay in relays:
            try:
                await relay.open()
            except OSError as error:
                raise ConfigError(f"relay before {relay.plan.node}: {error}") from error
        with socket_name(Path(config["control"])) as name:
            control = await asyncio.start_unix_server(
                lambda reader, writer: _control(ways, reader, writer), name, limit=LINE_BYTES_MAX
            )
        lifecycle.ready("relays", str(config["control"]))
        async with control:
            await stop.wait()
    finally:
        for relay in relays:
            await relay.close()


if __name__ == "__main__":
    told = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    code = lifecycle.run(lambda stop: main(told, stop), until_stdin_closes=True)
    raise SystemExit(code)
