"""Processes of a laboratory, found by what they carry and hold."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from firstlight.infra.lab.leftovers import end_marked, marked
from firstlight.infra.lab.who import NODE_VARIABLE, Processes, owner
from firstlight.shared.config import environment_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
SLEEPER = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process at a node's place that does not end by itself."""
    environment = environment_of(tmp_path) | {NODE_VARIABLE: "user"}
    command = [sys.executable, "-c", SLEEPER]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def test_a_process_is_known_by_the_run_and_the_place_that_it_carries(
    sleeper: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    known = Processes(tmp_path)
    assert known.now() == known.now() == {sleeper.pid: "user"}
    sleeper.kill()
    sleeper.wait()
    assert known.now() == {}
    assert marked(tmp_path / "other") == []


def test_who_was_left_behind_is_ended(sleeper: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    assert end_marked(tmp_path) == []
    assert sleeper.wait(5) == -9


def test_a_connection_belongs_to_the_process_that_has_its_other_end() -> None:
    program = (
        "import socket, sys, time; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
        "time.sleep(60)"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        child = subprocess.Popen([sys.executable, "-c", program, str(port)])
        try:
            connection, peer = server.accept()
            with connection:
                assert owner("tcp", peer[1], port, {child.pid: "user"}) == "user"
                assert owner("tcp", peer[1], port, {}) is None
                assert owner("tcp", peer[1], port + 1, {child.pid: "user"}) is None
        finally:
            child.kill()
            child.wait()


def test_a_datagram_belongs_to_the_process_that_sent_it() -> None:
    program = (
        "import socket, sys, time; s = socket.socket(type=socket.SOCK_DGRAM); "
        "s.sendto(b'x', ('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"
    )
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(30)
        port = server.getsockname()[1]
        child = subprocess.Popen([sys.executable, "-c", program, str(port)])
        try:
            _, sender = server.recvfrom(10)
            assert owner("udp", sender[1], port, {child.pid: "user"}) == "user"
        finally:
            child.kill()
            child.wait()
