"""`firstlight lab shell`: a shell, or one command, at a node's place in the network.

It ends with the laboratory: a shell must not keep a namespace that everything else has left.
"""

import os
import select
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from firstlight.infra.lab.leftovers import end_marked
from firstlight.infra.lab.running import find_lab
from firstlight.infra.lab.who import NODE_VARIABLE
from firstlight.shared.config import environment_of
from firstlight.shared.errors import ConfigError

LAB_GONE = 75
"""Exit code when the laboratory ended first."""
_GRACE_S = 3.0


def run_shell(node: str, command: Sequence[str], state: Path) -> int:
    """The command; returns the program's exit code. Raises `ConfigError`."""
    run, lab = find_lab(state)
    environment = environment_of(run) | {NODE_VARIABLE: node}
    program = list(command) or [environment.get("SHELL", "/bin/sh")]
    if not command:
        environment["PS1"] = f"{node}$ "
    with lab.at(node):
        try:
            child = subprocess.Popen(program, env=environment)
        except OSError as error:
            raise ConfigError(f"{program[0]}: {error.strerror}") from error
    return _wait(child, lab.pid, run)


def _wait(child: "subprocess.Popen[bytes]", launcher: int, run: Path) -> int:
    """Until the program ends, or the laboratory does, which ends the program."""
    try:
        watched = os.pidfd_open(launcher)
    except ProcessLookupError:
        _end(child, run)
        return LAB_GONE
    mine = os.pidfd_open(child.pid)
    try:
        while child.poll() is None:
            try:
                ready, _, _ = select.select([mine, watched], [], [])
            except KeyboardInterrupt:  # the terminal has told the program too
                continue
            if watched in ready and mine not in ready:
                _end(child, run)
                return LAB_GONE
    finally:
        os.close(watched)
        os.close(mine)
    code = child.returncode
    return code if code >= 0 else 128 - code


def _end(child: "subprocess.Popen[bytes]", run: Path) -> None:
    """End the program, and all that it or others have left of a laboratory that is gone."""
    child.send_signal(signal.SIGHUP)  # shells take SIGTERM lightly
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    end_marked(run)
