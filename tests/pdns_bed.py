"""A real PowerDNS on a loopback port, with the sample configuration, and a backend for it."""

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import dns.edns
import dns.message
import dns.query
import pytest

from firstlight.global_lb.dns import Zone
from firstlight.global_lb.dns_table import TableKeeper
from firstlight.infra.name_server import name_server, server_path
from firstlight.infra.ports import free_ports

ZONE = Zone(
    name="edge.test",
    steered=frozenset({"edge.test", "api.edge.test"}),
    nameservers=("ns1.edge.test", "ns2.other.test"),
    hosts={"ns1.edge.test": ("192.0.2.53",)},
    hostmaster="hostmaster.test",
)


def need_pdns() -> None:
    """The test is skipped if the server is not installed."""
    if server_path() is None:
        pytest.skip("needs the Debian packages pdns-server and pdns-backend-remote")


def steering(*edges: Mapping[str, object], **more: object) -> dict[str, object]:
    """What a source tells."""
    return {"object": "steering", "node": "lb", "edges": list(edges), "agreed": [], **more}


def told_edge(
    node: str,
    place: tuple[float, float] | None,
    *ips: str,
    domain: str = "",
    port: int = 443,
) -> dict[str, object]:
    """An edge of a source's table."""
    return {
        "node": node,
        "region": node,
        "failure_domain": domain or node,
        "address": f"{node}.test:{port}",
        "ips": list(ips),
        "place": None if place is None else list(place),
        "exact": True,
    }


LONDON = told_edge("lon", (51.5, -0.1), "192.0.2.1", "2001:db8::1", domain="eu-1")
PARIS = told_edge("par", (48.9, 2.4), "192.0.2.2", domain="eu-1")
TOKYO = told_edge("tok", (35.7, 139.7), "192.0.2.3", "2001:db8::3", domain="ap-1")
SYDNEY = told_edge("syd", (-33.9, 151.2), "192.0.2.4", domain="ap-2")


def world() -> TableKeeper:
    """Four edges; nobody has measured anything."""
    keeper = TableKeeper()
    keeper.take([steering(LONDON, PARIS, TOKYO, SYDNEY)], 0.0)
    return keeper


@contextlib.contextmanager
def pdns(socket_path: Path, folder: Path) -> Iterator[int]:
    """The server's port, while it runs with `infra/pdns/pdns.conf`."""
    need_pdns()
    (port,) = free_ports(1, random.Random())
    with name_server(socket_path, folder, port):
        yield port


def query(name: str, kind: str, subnet: str | None = None) -> dns.message.QueryMessage:
    """A question as a resolver asks it, perhaps on behalf of a network."""
    options = []
    if subnet is not None:
        address, _, bits = subnet.partition("/")
        options = [dns.edns.ECSOption(address, int(bits))]
    return dns.message.make_query(name, kind, use_edns=0, options=options)


def ask(
    port: int, name: str, kind: str, subnet: str | None = None, timeout_s: float = 3.0
) -> dns.message.Message:
    """The answer. Blocks: from a test with a loop, in a thread."""
    return dns.query.udp(query(name, kind, subnet), "127.0.0.1", timeout=timeout_s, port=port)


def texts(message: dns.message.Message) -> list[str]:
    """The contents of the answer section, sorted: a server shuffles addresses."""
    return sorted(item.to_text() for rrset in message.answer for item in rrset)


def scope(message: dns.message.Message) -> int | None:
    """For how much of the client's network the answer holds."""
    found = [one for one in message.options if isinstance(one, dns.edns.ECSOption)]
    return found[0].scopelen if found else None


_BACKEND = """
import asyncio, json, sys
from pathlib import Path
from firstlight.global_lb.dns_backend import Answers, serving
from firstlight.global_lb.dns_table import TableKeeper
from firstlight.infra.name_server import name_server, server_path
from firstlight.infra.ports import free_ports
from firstlight.shared.geography.geoip import Geoip
from pdns_bed import ZONE

async def main():
    path, geography, told = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    geoip, keeper = Geoip(geography), TableKeeper()
    geoip.refresh()
    keeper.take(told, 0.0)
    async with serving(path, 0o600, Answers(ZONE, lambda: keeper.table, geoip)):
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.contextmanager
def backend(
    path: Path, geography: Path, *told: Mapping[str, object]
) -> Iterator["subprocess.Popen[str]"]:
    """A process that answers at this socket from these tables."""
    command = [sys.executable, "-c", _BACKEND, str(path), str(geography), json.dumps(told)]
    places = os.pathsep.join(part for part in sys.path if part)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": places}
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()
