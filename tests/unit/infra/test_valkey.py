"""A Valkey server of our own, with the real server."""

import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep

import psutil
import pytest

from firstlight.infra.children import Child
from firstlight.infra.ports import free_ports
from firstlight.infra.valkey import ValkeyPlan, start_valkey, wait_answering
from firstlight.shared.errors import ConfigError


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            return True
        sleep(0.02)
    return False


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def plan() -> ValkeyPlan:
    (port,) = free_ports(1, random.SystemRandom())
    return ValkeyPlan("valkey-eu", "eu", "127.0.0.1", port)


@pytest.fixture
def server(plan: ValkeyPlan, tmp_path: Path) -> Iterator[Child]:
    child = start_valkey(plan, tmp_path)
    try:
        wait_answering(child, plan)
        yield child
    finally:
        child.kill()
        child.wait(10)
        child.close()


def said(plan: ValkeyPlan, *lines: str) -> bytes:
    with socket.create_connection((plan.host, plan.port), 5.0) as connection:
        connection.sendall("".join(f"{line}\r\n" for line in [*lines, "QUIT"]).encode())
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_it_serves_only_who_knows_its_password(
    server: Child, plan: ValkeyPlan, tmp_path: Path
) -> None:
    password = plan.password_file(tmp_path).read_text()
    assert said(plan, "GET a").startswith(b"-NOAUTH")
    assert said(plan, f"AUTH {password}", "SET a b").startswith(b"+OK\r\n+OK\r\n")
    assert plan.password_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "valkey-eu.conf").stat().st_mode & 0o777 == 0o600
    assert password not in " ".join(psutil.Process(server.process.pid).cmdline())


def test_its_memory_is_bounded_and_it_keeps_nothing_on_disk(
    server: Child, plan: ValkeyPlan, tmp_path: Path
) -> None:
    password = plan.password_file(tmp_path).read_text()
    answer = said(plan, f"AUTH {password}", "SET a b", "CONFIG GET maxmemory*")
    assert b"67108864" in answer
    assert b"allkeys-lru" in answer
    server.terminate()
    assert server.wait(10)
    assert {path.suffix for path in tmp_path.iterdir()} == {".conf", ".password", ".out", ".err"}


def test_it_is_started_again_with_the_password_that_it_had(
    server: Child, plan: ValkeyPlan, tmp_path: Path
) -> None:
    password = plan.password_file(tmp_path).read_text()
    server.kill()
    assert server.wait(10)
    again = start_valkey(plan, tmp_path)
    try:
        wait_answering(again, plan)
        assert said(plan, f"AUTH {password}").startswith(b"+OK")
    finally:
        again.kill()
        again.wait(10)
        again.close()


def test_it_ends_with_a_launcher_that_was_killed(plan: ValkeyPlan, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from firstlight.infra.valkey import *\n"
        f"plan = ValkeyPlan('valkey-eu', 'eu', '127.0.0.1', {plan.port})\n"
        f"child = start_valkey(plan, Path({str(tmp_path)!r})); wait_answering(child, plan)\n"
        "print(child.process.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        server = int(launcher.stdout.readline())
        (guard,) = psutil.Process(server).children()
        launcher.kill()
        assert wait_until(lambda: gone(server) and gone(guard.pid))


def test_one_that_stands_still_ends_with_its_launcher_too(server: Child, plan: ValkeyPlan) -> None:
    assert server.freeze(5)
    server.close()
    assert server.wait(10)
    assert server.process.returncode == -signal.SIGKILL


def test_its_guard_ends_with_it(server: Child) -> None:
    (guard,) = psutil.Process(server.process.pid).children()
    server.kill()
    assert wait_until(lambda: gone(guard.pid))


def test_a_port_that_is_taken_is_an_error_that_says_so(
    server: Child, plan: ValkeyPlan, tmp_path: Path
) -> None:
    other = start_valkey(ValkeyPlan("other", "eu", plan.host, plan.port), tmp_path)
    try:
        assert other.wait(10)
        with pytest.raises(ConfigError, match=r"other ended before it was ready .*in use"):
            wait_answering(other, plan)
    finally:
        other.close()
