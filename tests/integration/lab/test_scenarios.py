"""The short scenarios: one fault of each kind under load, with and without root."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firstlight.infra.lab.namespaces import missing
from firstlight.shared.config import environment_of

TIMEOUT_S = 330


def run(state: Path, *arguments: str) -> dict[str, Any]:
    """What `lab run --json` prints; it has to end by itself, with nothing left."""
    done = subprocess.run(
        [sys.executable, "-m", "firstlight", "lab", "run", "--json", *arguments],
        env=environment_of(state),
        cwd=state,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stdout, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if told["held"] else 1)
    assert list((state / "lab" / "runs").iterdir()) == []
    return told


def check(told: dict[str, Any]) -> None:
    missed = {row["row"]: (row["missed"], row["errors"]) for row in told["rows"] if row["missed"]}
    assert (missed, told["problems"]) == ({}, [])
    assert told["judge"]["violations"] == told["judge"]["missing"] == []
    assert told["held"]


def test_one_fault_of_each_kind_that_needs_no_root(tmp_path: Path) -> None:
    check(run(tmp_path, "short", *(["--relay"] if missing() else [])))


@pytest.mark.skipif(bool(missing()), reason=f"no namespaces: {missing()}")
def test_one_fault_of_each_kind_that_needs_root(tmp_path: Path) -> None:
    check(run(tmp_path, "short_root"))
