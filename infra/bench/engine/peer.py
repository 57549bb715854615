"""Another engine's server, started for a measurement and ended with all that it started."""

import os
import random
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from firstlight.infra.children import Child, start_program
from firstlight.infra.mesh_config import HOST
from firstlight.infra.ports import free_ports
from firstlight.shared.clock import monotonic_s, sleep_s
from firstlight.shared.errors import ConfigError

START_S, STOP_S, POLL_S = 300.0, 10.0, 0.2
"""How long a peer may load its model, and how long it may take to end."""


@dataclass(frozen=True, slots=True)
class Peer:
    """It answers."""

    url: str
    pid: int
    """Of the process that leads its group."""


def peer_command(command: str, port: int) -> list[str]:
    """The words of the command with the port in place. Raises `ConfigError`."""
    if "{port}" not in command:
        raise ConfigError("--peer names no {port}, where its port is put in")
    try:
        words = shlex.split(command.replace("{port}", str(port)))
    except ValueError as error:
        raise ConfigError(f"--peer cannot be read: {error}") from error
    if not words:
        raise ConfigError("--peer is empty")
    return words


@contextmanager
def running_peer(command: str, state: Path, start_s: float = START_S) -> Iterator[Peer]:
    """Start it, wait until it names its models, and end its group with the block.

    What it writes stays in `bench/peer.out` and `peer.err` of the state directory.

    Raises:
        ConfigError: it cannot be started, ended early, or does not answer in time.

    """
    (port,) = free_ports(1, random.SystemRandom())
    words, directory = peer_command(command, port), state / "bench"
    directory.mkdir(parents=True, exist_ok=True)
    try:
        child = start_program("peer", words, directory)
    except OSError as error:
        raise ConfigError(f"the peer cannot be started: {error}") from error
    try:
        url = f"http://{HOST}:{port}/v1"
        _wait_answering(child, url, start_s)
        yield Peer(url, child.process.pid)
    finally:
        _end(child)


def _wait_answering(child: Child, url: str, start_s: float) -> None:
    begun_s = monotonic_s()
    with httpx.Client(timeout=2.0, trust_env=False) as client:
        while not _answers(client, url):
            if not child.alive:
                raise ConfigError(child.obituary("before it answered"))
            if monotonic_s() - begun_s > start_s:
                tail = " | ".join(child.tail()) or "it wrote nothing"
                raise ConfigError(f"the peer did not answer within {start_s:g} s: {tail}")
            sleep_s(POLL_S)


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(f"{url}/models").status_code == 200
    except httpx.HTTPError:
        return False


def _end(child: Child) -> None:
    """SIGTERM to the group, a while, then SIGKILL to what is left of it; who is interrupted
    meanwhile waits no longer, and leaves nothing behind either."""
    try:
        _signal(child, signal.SIGTERM)
        child.wait(STOP_S)
    finally:
        _signal(child, signal.SIGKILL)
        child.wait(STOP_S)
        child.close()


def _signal(child: Child, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, number)
