"""One child process of the launcher: start it, wait until it is ready, end it.

Synchronous on purpose: a launcher that only waits needs no loop, and tests use it from anywhere.
The child's standard input is a pipe that the launcher holds, so that a launcher that is killed
takes its children with it. A session of its own keeps a terminal's Ctrl-C from reaching the child
twice.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any

from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError

_TAIL_LINES = 8
_TAIL_BYTES = 16 * 1024
_POLL_S = 0.001


@dataclass(slots=True)
class Child:
    """A started process with its two log files; `ready` is its ready line once it came."""

    name: str
    process: subprocess.Popen[bytes]
    out_file: Path
    err_file: Path
    ready: dict[str, Any] | None = None

    @property
    def alive(self) -> bool:
        """Whether the process still runs; reaps it if it has just ended."""
        return self.process.poll() is None

    def poll_ready(self) -> bool:
        """Whether the child has said that it is ready; `ConfigError` if it died before that."""
        if self.ready is None:
            self.ready = _ready_line(self.out_file)
        if self.ready is None and not self.alive:
            raise ConfigError(self.obituary("before it was ready"))
        return self.ready is not None

    def obituary(self, when: str) -> str:
        """One line: how the child ended and the last that it wrote."""
        code = self.process.poll()
        how = (
            "runs" if code is None else f"killed by signal {-code}" if code < 0 else f"exit {code}"
        )
        last = " | ".join(self.tail()) or "it wrote nothing"
        return f"{self.name} ended {when} ({how}): {last}"

    def tail(self) -> list[str]:
        """The last lines that the child wrote to its error log, or else to its output."""
        return _last_lines(self.err_file) or _last_lines(self.out_file)

    def terminate(self) -> None:
        """Ask the child to end; harmless if it has."""
        if self.alive:
            self.process.terminate()

    def kill(self) -> None:
        """End the child at once, as a crash would (SIGKILL); harmless if it has ended."""
        if self.alive:
            self.process.kill()

    def freeze(self, timeout_s: float) -> bool:
        """Stop the child where it stands; whether it stands still, or has ended, within the time.

        A signal only asks: a thread that runs on another core goes on until it enters the kernel.
        """
        self.process.send_signal(signal.SIGSTOP)
        deadline = monotonic_s() + timeout_s
        while self.alive and not _stopped(self.process.pid):
            if monotonic_s() > deadline:
                return False
            sleep(_POLL_S)
        return True

    def thaw(self) -> None:
        """Let a frozen child go on; harmless if it runs, or has ended."""
        self.process.send_signal(signal.SIGCONT)

    def wait(self, timeout_s: float) -> bool:
        """Whether the child has ended within the time."""
        try:
            self.process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Close our end of the pipe; the child takes that as the launcher's death."""
        if self.process.stdin is not None:
            self.process.stdin.close()


def _stopped(pid: int) -> bool:
    """Whether a child of ours stands still; what it left to wait for stays there."""
    kinds = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, pid, kinds) is not None


def start_child(
    name: str,
    arguments: Sequence[str],
    directory: Path,
    environment: Mapping[str, str] | None = None,
) -> Child:
    """Start `python -m firstlight ARGUMENTS`; it writes to NAME.out and NAME.err in `directory`."""
    return start_python(name, "firstlight", arguments, directory, environment=environment)


def start_python(
    name: str,
    module: str,
    arguments: Sequence[str],
    directory: Path,
    *,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Child:
    """Start `python -m MODULE ARGUMENTS`, as `start_child` starts a node."""
    command = [sys.executable, "-m", module, *arguments]
    return start_program(name, command, directory, environment, pass_fds)


def start_program(
    name: str,
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Child:
    """Start any program that ends when its standard input does, as `start_child` starts ours.

    `environment` is the whole of it; None: ours. `pass_fds` are open in the child as well.
    """
    out_file, err_file = directory / f"{name}.out", directory / f"{name}.err"
    with out_file.open("wb") as out, err_file.open("wb") as err:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            start_new_session=True,
            env=environment,
            pass_fds=pass_fds,
        )
    return Child(name, process, out_file, err_file)


def _ready_line(out_file: Path) -> dict[str, Any] | None:
    with out_file.open("rb") as file:
        for line in file.read(_TAIL_BYTES).splitlines(keepends=True):
            if not line.endswith(b"\n"):
                return None
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict) and value.get("ready") is True:
                return value
    return None


def _last_lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines() if line.strip()][-_TAIL_LINES:]
