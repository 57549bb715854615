"""PowerDNS run by hand: the sample configuration, on a loopback port, in front of our backend.

For tests and benchmarks; in production it is a service of its own, with `infra/pdns` as the
example.
"""

import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from firstlight.shared.clock import monotonic_s, sleep_s
from firstlight.shared.errors import ConfigError

SAMPLE = Path(__file__).parent / "pdns" / "pdns.conf"
HOST = "127.0.0.1"
START_S, STOP_S = 10.0, 10.0
MODULES = "*/pdns/libremotebackend.so"
_PROBE = bytes.fromhex("abcd010000010000000000000000020001")
"""A question for the root's name servers: whatever comes back, somebody serves."""


def server_path() -> str | None:
    """The installed server, if its remote backend is there too."""
    server = shutil.which("pdns_server") or shutil.which("pdns_server", path="/usr/sbin")
    module = next(Path("/usr/lib").glob(MODULES), None)
    return server if module is not None else None


@contextmanager
def name_server(
    backend: Path, folder: Path, port: int, changes: Mapping[str, str] | None = None
) -> Iterator[None]:
    """The server on this port while the block runs; its files and log are in `folder`."""
    server = server_path()
    if server is None:
        raise ConfigError("needs the Debian packages pdns-server and pdns-backend-remote")
    _write_config(folder, backend, port, changes or {})
    with (folder / "pdns.log").open("w") as log:
        command = [server, f"--config-dir={folder}"]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            _await(process, port, folder / "pdns.log")
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _write_config(folder: Path, backend: Path, port: int, changes: Mapping[str, str]) -> None:
    """The sample, but for the few lines that cannot be as they are away from its place."""
    changed = {
        "remote-connection-string": f"unix:path={backend},timeout=900",
        "local-address": HOST,
        "local-port": str(port),
        "setuid": "",
        "setgid": "",
        "socket-dir": str(folder),
        **changes,
    }
    kept = [
        line for line in SAMPLE.read_text().splitlines() if line.partition("=")[0] not in changed
    ]
    lines = [*kept, *(f"{key}={value}" for key, value in changed.items() if value)]
    (folder / "pdns.conf").write_text("\n".join(lines) + "\n")


def _await(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    until = monotonic_s() + START_S
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.settimeout(0.2)
        probe.connect((HOST, port))
        while monotonic_s() < until and process.poll() is None:
            try:
                probe.send(_PROBE)
                if probe.recv(4096):
                    return
            except OSError:  # not there yet, or nothing came back in time
                sleep_s(0.05)
    raise ConfigError(f"pdns_server does not serve: {log.read_text()[-400:]}")
