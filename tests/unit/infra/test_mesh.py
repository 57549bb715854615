"""Where a mesh of processes cannot begin, and how one ends that has not begun."""

import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from firstlight.infra.children import Child
from firstlight.infra.mesh import STOP_GRACE_S, _end, start_mesh
from firstlight.shared.errors import ConfigError

DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"


def test_a_state_directory_that_cannot_be_written_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    state = tmp_path / "file" / "below"
    with pytest.raises(ConfigError, match=f"{state}: the state directory .*FIRSTLIGHT_STATE_DIR"):
        start_mesh(state)


def test_a_node_that_still_loads_is_not_waited_for_as_one_that_drains(tmp_path: Path) -> None:
    out, err = tmp_path / "core.out", tmp_path / "core.err"
    err.touch()
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", DEAF], stdin=subprocess.PIPE, stdout=file, start_new_session=True
        )
    while not out.read_bytes():
        sleep(0.02)
    begun = monotonic()
    assert _end([Child("core", process, out, err)]) == []
    assert monotonic() - begun < STOP_GRACE_S / 2
    assert process.returncode == -9
