"""The laboratory's one router: packets of every namespace's device, each held as its link says.

    python -m firstlight.infra.lab.router CONFIG.json

It is started by the laboratory, which hands it the devices as open descriptors. One thread looks at
them, at the clock and at the control socket in turn; it runs before other processes where that is
permitted, since its lateness is everybody's. It ends when its standard input does. On the way out
it prints what it did, and what share of a CPU that took.
"""

import gc
import heapq
import json
import os
import resource
import select
import signal
import sys
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_interface
from pathlib import Path
from types import FrameType
from typing import Any

from firstlight.infra.lab.console import Console
from firstlight.infra.lab.links import Drop
from firstlight.infra.lab.paths import Path as Way
from firstlight.infra.lab.paths import Paths
from firstlight.infra.lab.topology import OPERATOR
from firstlight.infra.lab.topology_file import load_topology
from firstlight.infra.lab.tun import PACKET_BYTES_MAX, destination_of
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError, FirstlightError

BATCH_PACKETS = 32
"""At most so many from one device before the others, and what is due, have their turn."""
UNDERWAY_MAX = 200_000
"""Packets that the router holds at most; beyond it new ones are dropped."""
IDLE_S = 0.5
PRIORITY = 10
"""Of real-time scheduling. Where that is refused, niceness `NICE` is tried."""
NICE = -10
_LATE_KEPT = 4096
_WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Port:
    """One node's device."""

    node: str
    fd: int
    addresses: tuple[bytes, ...]
    """In network byte order."""


class Stopped(BaseException):
    """A signal asked the router to end."""


class Router:
    """Moves packets between devices until `Stopped` is raised or standard input ends."""

    def __init__(self, ports: list[Port], paths: Paths, console: Console) -> None:
        self._ports = {port.fd: port for port in ports}
        self._owner = {address: port for port in ports for address in port.addresses}
        self._paths = paths
        self._console = console
        self._ways: dict[tuple[int, bytes], tuple[Way, int]] = {}
        """Where a packet of a device goes, by its destination; found once."""
        self._underway: list[tuple[float, int, int, bytes]] = []
        """Heap of: when it leaves, a number that keeps the order, device, packet."""
        self._count = 0
        self._sent = 0
        self._dropped: Counter[str] = Counter()
        self._late_s: deque[float] = deque(maxlen=_LATE_KEPT)
        self._begun_s = self._window_s = monotonic_s()
        self._begun_cpu_s = _cpu_s()
        self._window = (0, self._begun_cpu_s)
        self._rate, self._share = 0.0, 0.0
        self._poller = select.epoll()
        for fd in self._ports:
            self._poller.register(fd, select.EPOLLIN)
        self._poller.register(console.fd, select.EPOLLIN)
        with suppress(OSError):  # a file, which has no end to wait for
            self._poller.register(sys.stdin.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Until the launcher is gone."""
        poller, waits = self._poller, [self._poller.fileno()]
        while True:
            now = self._depart()
            events = poller.poll(0)
            if not events:
                due_s = self._underway[0][0] - now if self._underway else IDLE_S
                select.select(waits, [], [], min(IDLE_S, max(0.0, due_s)))
                continue
            for fd, _ in events:
                if fd in self._ports:
                    self._arrive(fd)
                elif fd == sys.stdin.fileno():
                    if not os.read(fd, 4096):
                        return
                else:
                    self._console.serve(fd, self._poller, self.command)

    def _arrive(self, fd: int) -> None:
        """Take what a device has, and set each packet's time of departure."""
        underway, ways = self._underway, self._ways
        for _ in range(BATCH_PACKETS):
            try:
                packet = os.read(fd, PACKET_BYTES_MAX)
            except OSError:  # nothing more, or the device is down
                return
            now = monotonic_s()
            known = ways.get((fd, destination_of(packet))) or self._find(fd, packet)
            if known is None:
                self._dropped["no such address"] += 1
                continue
            way, out = known
            way.packets += 1
            way.bytes += len(packet)
            leaves = way.link.send(len(packet), now)
            if isinstance(leaves, Drop):
                way.drops[leaves] += 1
            elif len(underway) >= UNDERWAY_MAX:
                self._dropped["router full"] += 1
            else:
                self._count += 1
                heapq.heappush(underway, (leaves, self._count, out, packet))

    def _find(self, fd: int, packet: bytes) -> tuple[Way, int] | None:
        destination = destination_of(packet)
        target = self._owner.get(destination)
        if target is None or target.fd == fd:
            return None
        known = self._paths.path(self._ports[fd].node, target.node), target.fd
        self._ways[fd, destination] = known
        return known

    def _depart(self) -> float:
        """Send what is due; returns the time."""
        underway, now = self._underway, monotonic_s()
        while underway and underway[0][0] <= now:
            leaves, _, out, packet = heapq.heappop(underway)
            try:
                os.write(out, packet)
                self._sent += 1
            except OSError:
                self._dropped["device refused"] += 1
            self._late_s.append(now - leaves)
            now = monotonic_s()
        if now - self._window_s >= _WINDOW_S:
            self._close_window(now)
        return now

    def _close_window(self, now: float) -> None:
        (sent, cpu_s), cpu_now_s = self._window, _cpu_s()
        self._rate = (self._sent - sent) / (now - self._window_s)
        self._share = (cpu_now_s - cpu_s) / (now - self._window_s)
        self._window, self._window_s = (self._sent, cpu_now_s), now

    def command(self, command: dict[str, Any]) -> dict[str, Any]:
        """Answer one line of the control socket. Raises `ConfigError`."""
        if command.get("do") == "stats":
            return {**self.stats(), "paths": [path.told() for path in self._paths]}
        return self._paths.command(command)

    def stats(self) -> dict[str, Any]:
        """Totals, and rates over the last second."""
        lived_s = max(1e-9, monotonic_s() - self._begun_s)
        late_s = sorted(self._late_s) or [0.0]
        middle, high = len(late_s) // 2, len(late_s) * 99 // 100
        dropped = Counter(self._dropped)
        for path in self._paths:
            dropped.update(path.drops)
        return {
            "packets": self._sent,
            "underway": len(self._underway),
            "dropped": {str(reason): count for reason, count in dropped.items()},
            "packets_per_s": round(self._rate, 1),
            "cpu_share": round(self._share, 4),
            "packets_per_s_mean": round(self._sent / lived_s, 1),
            "cpu_share_mean": round((_cpu_s() - self._begun_cpu_s) / lived_s, 4),
            "late_p50_ms": round(late_s[middle] * 1e3, 3),
            "late_p99_ms": round(late_s[high] * 1e3, 3),
            "late_max_ms": round(late_s[-1] * 1e3, 3),
        }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def take_priority() -> str:
    """Run before other processes, if we may; says what was granted."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
        except OSError:
            return "none"
        return f"nice {NICE}"
    return f"real time {PRIORITY}"


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


def main(config_file: Path) -> int:
    """The program; returns the exit code."""
    config = json.loads(config_file.read_text("utf-8"))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        topology = load_topology(Path(config["topology"]))
        ports = [
            Port(node["name"], node["fd"], tuple(_packed(text) for text in node["addresses"]))
            for node in config["nodes"]
        ]
        unknown = {port.node for port in ports} - {*topology.nodes, OPERATOR}
        if unknown:
            raise ConfigError(f"{min(unknown)}: not a node of {config['topology']}")
        console = Console(Path(config["control"]))
        router = Router(ports, Paths(topology), console)
    except FirstlightError as error:
        print(f"firstlight: {error.message}", file=sys.stderr, flush=True)
        return 1
    priority = take_priority()
    gc.collect()
    gc.disable()  # nothing that is made for a packet points back at it
    ready = {"ready": True, "node": "router", "address": config["control"], "priority": priority}
    print(json.dumps(ready), flush=True)
    with suppress(Stopped):
        router.run()
    print(json.dumps(router.stats()), flush=True)
    console.close()
    return 0


def _packed(address: str) -> bytes:
    return ip_interface(address).ip.packed


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
