"""The file through which `chat` finds the local mesh."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from firstlight.infra.running import CoreAddress, EdgeAddress, RunningMesh, pid_alive, read_running
from firstlight.shared.errors import ConfigError

MESH = RunningMesh(
    pid=os.getpid(),
    lb="https://127.0.0.1:1",
    edges=(EdgeAddress("edge-eu", "eu", "https://127.0.0.1:2"),),
    ca_file="/ca.pem",
    model="m",
    cores=(CoreAddress("core-eu", "eu", "127.0.0.1:3"),),
)


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_is_written_is_read(tmp_path: Path) -> None:
    MESH.write(tmp_path)
    assert read_running(tmp_path) == MESH
    assert [path.name for path in tmp_path.iterdir()] == ["mesh.json"]


def test_a_file_of_an_older_version_has_no_cores(tmp_path: Path) -> None:
    MESH.write(tmp_path)
    path = tmp_path / "mesh.json"
    fields = json.loads(path.read_text())
    del fields["cores"]
    path.write_text(json.dumps(fields))
    assert read_running(tmp_path) == replace(MESH, cores=())


def test_no_file_says_how_to_start_a_mesh(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="firstlight up"):
        read_running(tmp_path)


def test_a_file_whose_launcher_has_ended_is_not_believed(tmp_path: Path) -> None:
    replace(MESH, pid=ended_pid()).write(tmp_path)
    with pytest.raises(ConfigError, match="is gone"):
        read_running(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"edges": 1}', '{"edges": [{}]}', '{"edges": [], "cores": [1]}']
)
def test_a_broken_file_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "mesh.json").write_text(text)
    with pytest.raises(ConfigError, match=r"mesh\.json cannot be read"):
        read_running(tmp_path)


def test_removing_takes_only_its_own_file_away(tmp_path: Path) -> None:
    MESH.write(tmp_path)
    replace(MESH, pid=os.getppid()).remove(tmp_path)
    assert read_running(tmp_path) == MESH
    MESH.remove(tmp_path)
    assert not (tmp_path / "mesh.json").exists()


def test_a_process_that_has_ended_is_not_alive() -> None:
    assert pid_alive(os.getpid())
    assert not pid_alive(ended_pid())
