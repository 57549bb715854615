"""A real PowerDNS on a loopback port, with the sample configuration, and a backend for it."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import dns.edns
import dns.flags
import dns.message
import dns.query
import dns.rcode
import pytest

from firstlight.global_lb.dns import Zone
from firstlight.global_lb.dns_table import TableKeeper

SAMPLE = Path(__file__).parents[1] / "infra" / "pdns" / "pdns.conf"
START_S = 10.0
ZONE = Zone(
    name="edge.test",
    steered=frozenset({"edge.test", "api.edge.test"}),
    nameservers=("ns1.edge.test", "ns2.other.test"),
    hosts={"ns1.edge.test": ("192.0.2.53",)},
    hostmaster="hostmaster.test",
)


def need_pdns() -> str:
    """The server's path; the test is skipped if it is not installed."""
    server = shutil.which("pdns_server") or shutil.which("pdns_server", path="/usr/sbin")
    if server is None or not list(Path("/usr/lib").glob("*/pdns/libremotebackend.so")):
        pytest.skip("needs the Debian packages pdns-server and pdns-backend-remote")
    return server


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


def free_port() -> int:
    """A UDP and TCP port that is free now."""
    with socket.socket() as tcp:
        tcp.bind(("127.0.0.1", 0))
        return int(tcp.getsockname()[1])


@contextlib.contextmanager
def pdns(backend: Path, folder: Path, *settings: str) -> Iterator[int]:
    """The server's port, while it runs with `infra/pdns/pdns.conf`."""
    server, port = need_pdns(), free_port()
    log = (folder / "pdns.log").open("w")
    command = [
        server,
        f"--config-dir={_config(folder, backend, port, settings)}",
    ]
    process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        _await_start(process, port, folder)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def _config(folder: Path, backend: Path, port: int, settings: tuple[str, ...]) -> Path:
    """The sample, with the few lines changed that a test cannot have as they are."""
    changed = {
        "remote-connection-string": f"unix:path={backend},timeout=900",
        "local-address": "127.0.0.1",
        "local-port": str(port),
        "setuid": "",
        "setgid": "",
        **dict(setting.split("=", 1) for setting in settings),
    }
    lines = []
    for line in SAMPLE.read_text().splitlines():
        key = line.partition("=")[0]
        if key not in changed:
            lines.append(line)
    lines += [f"{key}={value}" for key, value in changed.items() if value]
    lines += [f"socket-dir={folder}", "loglevel=4", "log-dns-queries=no"]
    (folder / "pdns.conf").write_text("\n".join(lines) + "\n")
    return folder


def _await_start(process: "subprocess.Popen[bytes]", port: int, folder: Path) -> None:
    """Whatever it answers, it serves."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        assert process.poll() is None, (folder / "pdns.log").read_text()
        with contextlib.suppress(OSError, dns.exception.Timeout):
            dns.query.udp(query("nobody.invalid", "A"), "127.0.0.1", timeout=0.2, port=port)
            return
    raise AssertionError((folder / "pdns.log").read_text())


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
