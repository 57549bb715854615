"""`firstlight dns` as a process beside a load balancer: what it hears, keeps and says."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from firstlight.infra.children import Child, start_child
from firstlight.infra.ports import free_ports
from firstlight.shared.config import environment_of
from firstlight.shared.join import Joiner
from firstlight.shared.lifecycle import incarnation
from firstlight.shared.tls import ensure_ca, issue
from firstlight.shared.types import Load, NodeInfo, Role

READY_S = 30.0


def _start(name: str, state: Path, settings: dict[str, object]) -> Child:
    config = state / f"{name}.yaml"
    config.write_text(json.dumps(settings))
    arguments = [name, "--with-parent", "--config", str(config)]
    child = start_child(name, arguments, state, environment_of(state))
    until = time.monotonic() + READY_S
    while not child.poll_ready():
        assert time.monotonic() < until, child.tail()
        time.sleep(0.05)
    return child


def _end(child: Child) -> None:
    child.kill()
    child.wait(10)
    child.close()


@pytest.fixture
def control(tmp_path: Path) -> Iterator[tuple[Child, str]]:
    """A load balancer with a name server's helper beside it, and where nodes join."""
    http, control = free_ports(2, Random())
    lb = _start(
        "lb",
        tmp_path,
        {
            "node": "lb",
            "http": {"listen": f"127.0.0.1:{http}"},
            "control": {"listen": f"127.0.0.1:{control}"},
        },
    )
    zone = {"name": "edge.test", "nameservers": ["ns1.edge.test"]}
    sources = [f"https://127.0.0.1:{http}"]
    socket = str(tmp_path / "dns.sock")
    dns = _start("dns", tmp_path, {"socket": socket, "zone": zone, "sources": sources})
    try:
        yield lb, f"127.0.0.1:{control}"
    finally:
        _end(dns)
        _end(lb)


@asynccontextmanager
async def _edge(node: str, control: str, state: Path, ip: str) -> AsyncIterator[None]:
    files = issue(ensure_ca(state / "tls"), Role.EDGE, node, ["127.0.0.1"], state / "tls")
    info = NodeInfo(node, Role.EDGE, incarnation(), "lon", f"{node}.test:443", ips=(ip,))
    joiner = Joiner(info, files, [control], load=Load, rng=Random(1))
    async with joiner.member(asyncio.Event()):
        yield


async def _asked(state: Path) -> list[str] | None:
    """Addresses that are named; None if the connection breaks."""
    reader, writer = await asyncio.open_unix_connection(state / "dns.sock")
    parameters = {"qname": "edge.test.", "qtype": "A", "remote": "127.0.0.1"}
    writer.write(json.dumps({"method": "lookup", "parameters": parameters}).encode() + b"\n")
    line = await reader.readline()
    writer.close()
    return sorted(one["content"] for one in json.loads(line)["result"]) if line else None


async def _until(state: Path, expected: list[str]) -> None:
    for _ in range(200):
        named = await _asked(state)
        if named == expected:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(named)


async def test_edges_come_into_dns_and_stay_when_every_load_balancer_is_gone(
    tmp_path: Path, control: tuple[Child, str]
) -> None:
    lb, address = control
    assert await _asked(tmp_path) is None  # nobody is known yet: never "no such name"
    async with (
        _edge("e1", address, tmp_path, "192.0.2.1"),
        _edge("e2", address, tmp_path, "192.0.2.2"),
    ):
        await _until(tmp_path, ["192.0.2.1", "192.0.2.2"])
        lb.kill()
        await asyncio.sleep(3)  # more than its lease, or a question to it, takes
        assert await _asked(tmp_path) == ["192.0.2.1", "192.0.2.2"]


async def test_a_source_that_cannot_sign_is_not_believed(tmp_path: Path) -> None:
    http, control = free_ports(2, Random())
    listen = {
        "http": {"listen": f"127.0.0.1:{http}"},
        "control": {"listen": f"127.0.0.1:{control}"},
    }
    lb = _start("lb", tmp_path, {"node": "lb", **listen})
    (tmp_path / "other.key").write_text("ab" * 32)
    settings = {
        "socket": str(tmp_path / "dns.sock"),
        "zone": {"name": "edge.test", "nameservers": ["ns1.edge.test"]},
        "sources": [f"https://127.0.0.1:{http}"],
        "keys": {"directory_file": str(tmp_path / "other.key")},
    }
    dns = _start("dns", tmp_path, settings)
    try:
        async with _edge("e1", f"127.0.0.1:{control}", tmp_path, "192.0.2.1"):
            await asyncio.sleep(3)
            assert await _asked(tmp_path) is None
            assert "answers 401" in "\n".join(dns.tail())
    finally:
        _end(dns)
        _end(lb)
