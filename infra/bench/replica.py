"""How soon a load balancer that starts knows the mesh, and how soon a node that froze is suspect.

    python -m firstlight.infra.bench.replica [--nodes 20] [--rounds 5] [--seed 1]

A real load balancer, and so many nodes that report as real ones do, all in this process: none
serves anything. Each round kills the load balancer (SIGKILL), waits until nodes try again as seldom
as they ever do, and starts it anew; the time runs from its ready line until it has heard of every
node. Then one node stops to report, without a word; the time runs from its last report until a view
says that it is suspect. Exits with 1 if the first ever takes more than 2 s, or the second 1.6 s.

All nodes share one process here, and its CPU: with hundreds of them it is this process, which makes
their connections, that takes the time.
"""

import argparse
import asyncio
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

import yaml

from firstlight.infra.bench.machine import heading
from firstlight.infra.children import Child, start_child
from firstlight.infra.ports import free_ports
from firstlight.shared.clock import monotonic_s, sleep_s
from firstlight.shared.errors import ConfigError, PeerError
from firstlight.shared.join import REPORT_EVERY_S, Joiner
from firstlight.shared.lifecycle import incarnation
from firstlight.shared.tls import ensure_ca, issue
from firstlight.shared.types import Load, MeshView, NodeInfo, Role

VIEW_S_MAX = 2.0
SUSPECT_S_MAX = 1.6
DEAD_S = 3.0
WAIT_S = 60.0
POLL_S = 0.005
NODES_MAX = 1000
HOST = "127.0.0.1"
"""Nothing leaves this machine."""


class Nodes:
    """Cores that only report, and what one of them hears."""

    def __init__(self, run: Path, address: str, count: int, seed: int) -> None:
        authority = ensure_ca(run / "tls")
        self.known: set[str] = set()
        self.suspects: frozenset[str] = frozenset()
        self.joiners = []
        for number in range(count):
            name = f"core-{number:04}"
            info = NodeInfo(name, Role.CORE, incarnation(), "eu", f"{name}.example:1")
            files = issue(authority, Role.CORE, name, [HOST], run / "tls")
            on_view = self._on_view if number == 0 else lambda view: None
            self.joiners.append(
                Joiner(
                    info,
                    files,
                    [address],
                    load=Load,
                    on_view=on_view,
                    rng=Random(f"{seed} {number}"),
                )
            )

    def _on_view(self, view: MeshView) -> None:
        self.known |= {report.info.node for report, _ in view.reports}
        self.suspects = view.suspects

    def suspected(self, number: int) -> bool:
        """Whether the first node was told that this one is suspect."""
        return f"core-{number:04}" in self.suspects


async def measure(run: Path, count: int, rounds: int, seed: int) -> tuple[list[float], list[float]]:
    """(seconds until a new replica knows all nodes, seconds until one that ended is suspect)."""
    http, control = free_ports(2, random.SystemRandom())
    settings = {
        "node": "lb",
        "http": {"listen": f"{HOST}:{http}"},
        "control": {"listen": f"{HOST}:{control}"},
        "tls": {"directory": str(run / "tls")},
        "log_level": "error",
    }
    (run / "lb.yaml").write_text(yaml.safe_dump(settings))
    nodes = Nodes(run, f"{HOST}:{control}", count, seed)
    lb = await asyncio.to_thread(_start, run)
    never = asyncio.Event()
    tasks = [asyncio.create_task(joiner.run(never)) for joiner in nodes.joiners]
    whole_s, suspect_s = [], []
    try:
        await _until(lambda: len(nodes.known) == count)
        for _ in range(rounds):
            _kill(lb)
            await asyncio.sleep(DEAD_S)
            nodes.known.clear()
            lb = await asyncio.to_thread(_start, run)
            whole_s.append(await _until(lambda: len(nodes.known) == count))
        for number in range(1, rounds + 1):
            await asyncio.sleep(REPORT_EVERY_S * number / rounds)
            tasks[number].cancel()
            suspect_s.append(await _until(partial(nodes.suspected, number)))
    finally:
        _kill(lb)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return whole_s, suspect_s


def _start(run: Path) -> Child:
    lb = start_child("lb", ["lb", "--config", str(run / "lb.yaml")], run)
    begun_s = monotonic_s()
    while not lb.poll_ready():
        if monotonic_s() - begun_s > WAIT_S:
            raise ConfigError(lb.obituary("before it was ready"))
        sleep_s(POLL_S)
    return lb


def _kill(lb: Child) -> None:
    lb.kill()
    lb.wait(5.0)
    lb.close()


async def _until(true: Callable[[], bool]) -> float:
    begun_s = monotonic_s()
    while not true():
        if monotonic_s() - begun_s > WAIT_S:
            raise PeerError(f"what was waited for did not come true within {WAIT_S:.0f} s")
        await asyncio.sleep(POLL_S)
    return monotonic_s() - begun_s


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m firstlight.infra.bench.replica")
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if not 1 <= options.rounds < options.nodes <= NODES_MAX:
        parser.error(f"expected 1 to {NODES_MAX} nodes, and fewer rounds than nodes")
    logging.getLogger("firstlight").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(measure(Path(directory), options.nodes, options.rounds, options.seed))
    print(heading())
    kept = True
    for what, times, most in zip(
        (f"a new replica knows {options.nodes} nodes", "a node that ended is suspect"),
        found,
        (VIEW_S_MAX, SUSPECT_S_MAX),
        strict=True,
    ):
        print(f"{what}: median {median(times):.2f} s, max {max(times):.2f} s ({most} s allowed)")
        kept = kept and max(times) <= most
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
