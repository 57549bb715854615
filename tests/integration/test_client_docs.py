"""The programs in docs/client.md run as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from firstlight.infra.mesh import Mesh

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_there_is_one_for_threads_and_one_for_asyncio() -> None:
    assert len(PROGRAMS) == 2


@pytest.mark.parametrize("program", PROGRAMS, ids=["threads", "asyncio"])
def test_a_program_of_the_page_answers(program: str, mesh: Mesh) -> None:
    given = f"URL, CA = {mesh.plan.edges[0].url!r}, {str(mesh.ca_file)!r}\n"
    ended = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", given + program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout) > 20
    assert ended.stderr == ""
