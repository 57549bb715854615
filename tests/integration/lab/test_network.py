"""Two real namespaces and the real router: distance, faults, and that nothing stays."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import pytest
import yaml

from firstlight.infra.bench.lab_router import round_trips_ms
from firstlight.infra.lab.network import Network, address_v6, start_network
from firstlight.infra.lab.topology_file import load_topology
from firstlight.shared.errors import ConfigError, PeerError

PORT = 7001


def udp(network: Network, node: str, *, v6: bool = False, bound: bool = False) -> socket.socket:
    family = socket.AF_INET6 if v6 else socket.AF_INET
    with network.namespace(node).inside():
        made = socket.socket(family, socket.SOCK_DGRAM)
    made.settimeout(2.0)
    if bound:
        address = network.addresses[node]
        made.bind((address_v6(address) if v6 else address, PORT))
    return made


@contextmanager
def pair(network: Network, *, v6: bool = False) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket at `one` that is connected to one at `other`."""
    with udp(network, "one", v6=v6) as source, udp(network, "other", v6=v6, bound=True) as sink:
        source.connect(sink.getsockname())
        yield source, sink


def arrives(source: socket.socket, sink: socket.socket, within_s: float = 0.5) -> bool:
    sink.settimeout(within_s)
    source.send(b"x")
    try:
        return sink.recv(10) == b"x"
    except TimeoutError:
        return False


def test_two_nodes_are_as_far_apart_as_was_asked(network: Network) -> None:
    assert 20.0 <= median(round_trips_ms(network, 30)) < 22.0


def test_tcp_is_as_the_topology_says_at_nodes_and_nowhere_else(
    two_nodes: Path, tmp_path: Path
) -> None:
    here = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")
    before, asked = here.read_text(), "0" if here.read_text().strip() == "1" else "1"
    whole = yaml.safe_load(two_nodes.read_text()) | {"tcp": {"slow_start_after_idle": asked == "1"}}
    two_nodes.write_text(yaml.safe_dump(whole))
    network = start_network(load_topology(two_nodes), two_nodes, tmp_path)
    try:
        with network.namespace("one").inside():
            assert here.read_text().strip() == asked
        assert here.read_text() == before
    finally:
        network.close()


def test_a_congestion_control_that_is_not_here_is_refused_by_its_name(
    two_nodes: Path, tmp_path: Path
) -> None:
    whole = yaml.safe_load(two_nodes.read_text()) | {"tcp": {"congestion_control": "nonesuch"}}
    two_nodes.write_text(yaml.safe_dump(whole))
    with pytest.raises(ConfigError, match="tcp_congestion_control cannot be 'nonesuch' here"):
        start_network(load_topology(two_nodes), two_nodes, tmp_path)


def test_a_node_reaches_itself_without_the_router(network: Network) -> None:
    with udp(network, "one", bound=True) as sink, udp(network, "one") as source:
        source.connect(sink.getsockname())
        assert arrives(source, sink)
    with network.control() as control:
        assert control.stats()["packets"] == 0


def test_ipv6_is_routed_too(network: Network) -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this kernel has no IPv6")
    with pair(network, v6=True) as (source, sink):
        assert arrives(source, sink, 2.0)


def test_a_partition_of_one_direction_leaves_the_other(network: Network) -> None:
    with pair(network) as (source, sink), network.control() as control:
        assert control.change("partition", "one", "other", one_way=True) == 1
        assert not arrives(source, sink)
        sink.sendto(b"y", source.getsockname())
        assert source.recv(10) == b"y"
        assert control.change("heal") == 2
        assert arrives(source, sink, 2.0)
        told = {(path["from"], path["to"]): path for path in control.stats()["paths"]}
        assert told["one", "other"]["drops"] == {"cut": 1}


def test_a_changed_link_is_slower_at_once(network: Network) -> None:
    with network.control() as control:
        control.change("set", "one", "other", link={"rtt_ms": 80})
        assert 80.0 <= median(round_trips_ms(network, 10)) < 83.0


def test_a_slow_line_carries_as_much_as_it_may(network: Network) -> None:
    with pair(network) as (source, sink), network.control() as control:
        control.change("set", "one", "other", link={"mbit_per_s": 1}, one_way=True)
        begun = monotonic()
        for _ in range(40):
            source.send(bytes(1222))  # 1,250 bytes on the line: a hundred a second
        for _ in range(40):
            sink.recv(2000)
        assert 0.40 <= monotonic() - begun < 0.9


def test_a_wrong_command_is_refused_and_the_next_one_is_heard(network: Network) -> None:
    with network.control() as control:
        with pytest.raises(ConfigError, match="from: 'mars', expected a region or a node"):
            control.change("partition", "mars")
        assert control.change("partition") == 2


def test_what_is_no_command_is_refused(network: Network) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(5.0)
        raw.connect(str(network.control_file))
        raw.sendall(b"{\n[]\n")
        assert raw.makefile("rb").readline() == b'{"ok": false, "error": "not JSON"}\n'


def test_an_operator_who_reads_nothing_delays_nobody(network: Network) -> None:
    with socket.socket(socket.AF_UNIX) as deaf, pair(network) as (source, sink):
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(str(network.control_file))
        deaf.sendall(b'{"do": "stats"}\n' * 2000)
        assert arrives(source, sink, 2.0)


def test_nobody_is_called_what_no_node_is(network: Network) -> None:
    with pytest.raises(ConfigError, match="no node is called 'mars': operator, one, other"):
        network.namespace("mars")


def test_a_block_inside_returns_home_also_from_an_error(network: Network) -> None:
    home = os.readlink("/proc/thread-self/ns/net")

    def fail() -> None:
        with network.namespace("one").inside():
            assert os.readlink("/proc/thread-self/ns/net") != home
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert os.readlink("/proc/thread-self/ns/net") == home


def test_only_the_thread_that_enters_is_inside(network: Network) -> None:
    seen = []
    with network.namespace("one").inside():
        inside = os.readlink("/proc/thread-self/ns/net")
    home = os.readlink("/proc/self/ns/net")
    entered, looked = threading.Event(), threading.Event()

    def enter() -> None:
        with network.namespace("one").inside():
            seen.append(os.readlink("/proc/thread-self/ns/net"))
            entered.set()
            looked.wait(5)

    thread = threading.Thread(target=enter)
    thread.start()
    entered.wait(5)
    seen.append(os.readlink("/proc/thread-self/ns/net"))
    looked.set()
    thread.join(5)
    assert seen == [inside, home]


def test_a_closed_network_leaves_nothing(network: Network) -> None:
    assert network.router is not None
    router, descriptors = network.router, set(os.listdir("/proc/self/fd"))
    held = {namespace.fd for namespace in network.namespaces.values()}
    assert network.close() == []
    assert not router.alive
    assert not {str(fd) for fd in held} & (set(os.listdir("/proc/self/fd")) - {"0", "1", "2"})
    assert len(descriptors) > len(set(os.listdir("/proc/self/fd")))
    with pytest.raises(PeerError, match="the router does not answer"):
        network.control()


_LAUNCHER = """
import sys, time
from pathlib import Path
from firstlight.infra.lab.network import start_network
from firstlight.infra.lab.topology_file import load_topology
file, run = Path(sys.argv[1]), Path(sys.argv[2])
network = start_network(load_topology(file), file, run)
print(network.router.process.pid, flush=True)
time.sleep(60)
"""


def namespaces_now() -> set[str]:
    """All network namespaces that any process is in or holds."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        links = [entry / "ns" / "net"]
        try:
            links += list((entry / "fd").iterdir())
            found |= {os.readlink(link) for link in links if link.is_symlink()}
        except OSError:
            continue
    return {name for name in found if name.startswith("net:")}


def test_a_killed_launcher_takes_router_and_namespaces_with_it(
    two_nodes: Path, tmp_path: Path
) -> None:
    before = namespaces_now()
    launcher = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER, str(two_nodes), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with launcher:
        assert launcher.stdout is not None
        router = int(launcher.stdout.readline())
        made = namespaces_now() - before
        assert len(made) >= 3
        launcher.send_signal(signal.SIGKILL)
    deadline = monotonic() + 10
    while (Path(f"/proc/{router}").exists() or made & namespaces_now()) and monotonic() < deadline:
        sleep(0.05)
    assert not Path(f"/proc/{router}").exists()
    assert not made & namespaces_now()
