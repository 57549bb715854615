"""What the README tells people to type works as it stands there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from firstlight.infra.mesh import Mesh

ROOT = Path(__file__).parents[2]
LINES = [
    line.split(" # ")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    for line in block.splitlines()
]
COMMANDS = [line for line in LINES if line.startswith(".venv/bin/firstlight ")]
VERBS = [line.split()[1] for line in LINES if line.startswith("make ")]


def test_every_line_is_known_here() -> None:
    assert COMMANDS
    assert VERBS
    assert len(COMMANDS) + len(VERBS) == len(LINES)


@pytest.mark.parametrize("verb", VERBS)
def test_every_make_verb_exists(verb: str) -> None:
    assert re.search(rf"^{verb}:", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_answers_on_a_running_mesh(
    command: str, mesh: Mesh, mesh_state: Path
) -> None:
    arguments = shlex.split(command)[1:]
    if arguments[0] == "chat":
        arguments += ["--max-tokens", "8"]
    ended = subprocess.run(
        [sys.executable, "-m", "firstlight", *arguments],
        env={**os.environ, "FIRSTLIGHT_STATE_DIR": str(mesh_state)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()
