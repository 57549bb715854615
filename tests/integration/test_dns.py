"""DNS through a real PowerDNS with the sample configuration: who gets what, in trouble too."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import pytest
from mmdb_bed import write_database
from pdns_bed import (
    LONDON,
    PARIS,
    SYDNEY,
    TOKYO,
    ask,
    backend,
    need_pdns,
    pdns,
    scope,
    steering,
    texts,
)

IN_LONDON, IN_TOKYO = "81.2.69.0/24", "203.0.113.0/24"
SERVFAIL_S = 1.1


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a name server over four edges, two of which fail together."""
    need_pdns()
    folder = tmp_path_factory.mktemp("dns")
    write_database(folder / "places.mmdb")
    told = steering(LONDON, PARIS, TOKYO, SYDNEY)
    with backend(folder / "s", folder, told), pdns(folder / "s", folder) as port:
        yield port


def test_a_client_gets_the_nearest_edge_and_the_next_that_does_not_fail_with_it(world: int) -> None:
    answer = ask(world, "edge.test", "A", IN_LONDON)
    assert texts(answer) == ["192.0.2.1", "192.0.2.3"]
    assert answer.flags & dns.flags.AA
    assert {rrset.ttl for rrset in answer.answer} == {20}


def test_addresses_of_the_sixth_version_are_given_too(world: int) -> None:
    assert texts(ask(world, "edge.test", "AAAA", IN_TOKYO)) == ["2001:db8::3"]
    assert texts(ask(world, "edge.test", "AAAA", "2001:db8:1::/48")) == [
        "2001:db8::1",
        "2001:db8::3",
    ]


def test_https_records_name_the_nearer_edge_first_and_its_protocols(world: int) -> None:
    assert texts(ask(world, "api.edge.test", "HTTPS", IN_TOKYO)) == [
        '1 . alpn="h3,h2" ipv4hint="192.0.2.3" ipv6hint="2001:db8::3"',
        '2 . alpn="h3,h2" ipv4hint="192.0.2.4"',
    ]


def test_the_zone_has_its_soa_and_name_servers(world: int) -> None:
    assert texts(ask(world, "edge.test", "SOA")) == [
        "ns1.edge.test. hostmaster.test. 1 3600 600 86400 20"
    ]
    assert texts(ask(world, "edge.test", "NS")) == ["ns1.edge.test.", "ns2.other.test."]
    assert texts(ask(world, "ns1.edge.test", "A")) == ["192.0.2.53"]


def test_a_name_that_there_is_not_does_not_exist(world: int) -> None:
    assert ask(world, "no.edge.test", "A").rcode() == dns.rcode.NXDOMAIN


def test_a_type_that_a_name_has_not_is_no_error(world: int) -> None:
    answer = ask(world, "edge.test", "MX")
    assert (answer.rcode(), texts(answer)) == (dns.rcode.NOERROR, [])


def test_an_answer_says_for_which_network_it_holds(world: int) -> None:
    assert scope(ask(world, "edge.test", "A", IN_LONDON)) == 24
    assert scope(ask(world, "edge.test", "A", "81.2.69.142/32")) == 24
    assert scope(ask(world, "edge.test", "A", "81.2.0.0/16")) == 16
    assert scope(ask(world, "edge.test", "A", "2001:db8:1:2::/64")) == 48


def test_a_client_that_hides_its_network_gets_an_answer_that_is_not_for_everyone(
    world: int,
) -> None:
    answer = ask(world, "edge.test", "A", "0.0.0.0/0")
    assert len(texts(answer)) == 2
    assert scope(answer) != 0


@pytest.mark.parametrize("kind", ["A", "AAAA", "HTTPS"])
def test_an_answer_for_one_network_never_reaches_another(world: int, kind: str) -> None:
    expected = {
        subnet: texts(ask(world, "edge.test", kind, subnet)) for subnet in (IN_LONDON, IN_TOKYO)
    }
    assert expected[IN_LONDON] != expected[IN_TOKYO]
    plain = texts(ask(world, "edge.test", kind))
    for _ in range(50):  # whatever a cache kept of one would come to the other
        for subnet, answer in expected.items():
            assert texts(ask(world, "edge.test", kind, subnet)) == answer
        assert texts(ask(world, "edge.test", kind)) == plain


def test_a_resolver_without_a_client_network_counts_itself(world: int) -> None:
    assert len(texts(ask(world, "edge.test", "A"))) == 2


def test_dig_sees_the_same(world: int) -> None:
    dig = shutil.which("dig")
    if dig is None:
        pytest.skip("needs dig, of the Debian package bind9-dnsutils")
    command = [dig, "+short", "+subnet=203.0.113.7/24", "-p", str(world), "@127.0.0.1"]
    done = subprocess.run([*command, "edge.test", "A"], capture_output=True, text=True, timeout=20)
    assert sorted(done.stdout.split()) == ["192.0.2.3", "192.0.2.4"]


def _fails_in_time(port: int) -> None:
    begun = time.monotonic()
    answer = ask(port, "edge.test", "A", IN_LONDON)
    took_s = time.monotonic() - begun
    assert answer.rcode() == dns.rcode.SERVFAIL
    assert took_s <= SERVFAIL_S


def test_a_frozen_backend_is_servfail_in_time_and_recovers(tmp_path: Path) -> None:
    write_database(tmp_path / "places.mmdb")
    with (
        backend(tmp_path / "s", tmp_path, steering(LONDON, TOKYO)) as process,
        pdns(tmp_path / "s", tmp_path) as port,
    ):
        assert ask(port, "edge.test", "A", IN_LONDON).rcode() == dns.rcode.NOERROR
        process.send_signal(signal.SIGSTOP)
        for _ in range(3):
            _fails_in_time(port)
        process.send_signal(signal.SIGCONT)
        assert texts(ask(port, "edge.test", "A", IN_LONDON)) == ["192.0.2.1", "192.0.2.3"]


def test_a_backend_that_knows_no_edge_is_servfail_and_never_no_such_name(tmp_path: Path) -> None:
    with backend(tmp_path / "s", tmp_path) as _, pdns(tmp_path / "s", tmp_path) as port:
        for _ in range(10):
            _fails_in_time(port)


def test_a_backend_that_dies_and_comes_back_is_servfail_only_meanwhile(tmp_path: Path) -> None:
    told = steering(LONDON, TOKYO)
    write_database(tmp_path / "places.mmdb")
    with contextlib.ExitStack() as first:
        process = first.enter_context(backend(tmp_path / "s", tmp_path, told))
        port = first.enter_context(pdns(tmp_path / "s", tmp_path))
        assert ask(port, "edge.test", "A", IN_LONDON).rcode() == dns.rcode.NOERROR
        process.kill()
        process.wait()
        _fails_in_time(port)
        with backend(tmp_path / "s", tmp_path, told):
            answers = [ask(port, "edge.test", "A", IN_LONDON).rcode() for _ in range(20)]
            # Each thread of the server finds its old connection broken, once.
            assert answers[-1] == dns.rcode.NOERROR
            assert set(answers) <= {dns.rcode.NOERROR, dns.rcode.SERVFAIL}


@contextlib.contextmanager
def _liar(path: Path, reply: Callable[[bytes], bytes]) -> Iterator[None]:
    """Something that answers the handshake, and then as it likes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        threading.Thread(target=_lie, args=(listener, reply), daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def _lie(listener: socket.socket, reply: Callable[[bytes], bytes]) -> None:
    def talk(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as lines:
            for line in lines:
                if b'"initialize"' in line:
                    connection.sendall(b'{"result":true}\n')
                elif b'"getAllDomains"' in line:
                    zone = b'{"id":1,"zone":"edge.test.","kind":"native","serial":1}'
                    connection.sendall(b'{"result":[' + zone + b"]}\n")
                else:
                    connection.sendall(reply(line))

    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=talk, args=(connection,), daemon=True).start()


@pytest.mark.parametrize(
    "lie", [b"\x00\xff garbage\n", b"[1, 2]\n", b'{"result":\n', b"{}\n", os.urandom(4000) + b"\n"]
)
def test_a_backend_that_talks_nonsense_is_servfail_in_time(tmp_path: Path, lie: bytes) -> None:
    with _liar(tmp_path / "s", lambda line: lie), pdns(tmp_path / "s", tmp_path) as port:
        _fails_in_time(port)
