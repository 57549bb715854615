"""The live view on a pseudo-terminal: it draws, survives a resize, and leaves a clean terminal."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from terminal import HIDE_CURSOR, SHOW_CURSOR, Terminal

from firstlight.infra import cli
from firstlight.infra.live import table
from firstlight.infra.running import CoreAddress, EdgeAddress, RunningMesh
from firstlight.infra.status import Row
from firstlight.shared.tls import ensure_ca

ERASE_LINE = b"\x1b[2K"
PROGRAM = """
import asyncio, sys
from pathlib import Path
from rich.console import Console
from firstlight.infra.live import watch
from firstlight.infra.running import read_running
mesh, flag = read_running(Path(sys.argv[1])), Path(sys.argv[1]) / "ended"
def ended():
    return {"core-eu"} if flag.exists() else ()
try:
    asyncio.run(watch(Console(), lambda: mesh, ended))
    print("the end")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with a mesh of which no node answers."""
    mesh = RunningMesh(
        pid=os.getpid(),
        lb="https://127.0.0.1:9",
        edges=(EdgeAddress("edge-eu", "eu", "https://127.0.0.1:9"),),
        ca_file=str(ensure_ca(tmp_path / "tls").cert),
        model="m",
        cores=(CoreAddress("core-eu", "eu", "127.0.0.1:9"),),
    )
    mesh.write(tmp_path)
    return tmp_path


@pytest.fixture
def terminal(state: Path) -> Iterator[Terminal]:
    """The live view of that mesh."""
    opened = Terminal(["-c", PROGRAM, str(state)])
    yield opened
    opened.close()


def test_the_view_draws_again_and_again_until_ctrl_c_which_gives_the_cursor_back(
    terminal: Terminal,
) -> None:
    terminal.read_until(lambda seen: seen.count(b"core-eu") >= 3)
    assert b"silent" in terminal.seen
    assert HIDE_CURSOR in terminal.seen
    assert SHOW_CURSOR not in terminal.seen
    terminal.press_ctrl_c()
    terminal.read_until(lambda seen: b"interrupted" in seen)
    assert terminal.process.wait(30) == 0
    assert b"Traceback" not in terminal.seen
    assert terminal.seen.rfind(SHOW_CURSOR) > terminal.seen.rfind(HIDE_CURSOR)


def test_the_view_goes_on_in_a_terminal_of_another_size(terminal: Terminal) -> None:
    terminal.read_until(lambda seen: b"core-eu" in seen)
    terminal.resize(3, 20)
    before = terminal.seen.count(ERASE_LINE)
    terminal.read_until(lambda seen: seen.count(ERASE_LINE) >= before + 12)
    assert terminal.process.poll() is None


def test_a_node_that_dies_is_shown_before_the_view_ends(terminal: Terminal, state: Path) -> None:
    terminal.read_until(lambda seen: b"core-eu" in seen)
    (state / "ended").touch()
    terminal.read_until(lambda seen: b"the end" in seen)
    assert b"ended" in terminal.seen
    assert terminal.seen.rfind(b"ended") < terminal.seen.rfind(SHOW_CURSOR)
    assert terminal.process.wait(30) == 0


def shown(*found: Row) -> str:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table(found))
    return capture.get()


def test_columns_that_nobody_fills_are_left_out() -> None:
    text = shown(Row("edge-eu", "edge", "eu", "ready", running=1))
    assert "1 stream" in text
    assert "tok/s" not in text
    assert "round trips" not in text
    assert "tok/s" in shown(Row("core-eu", "core", "eu", "ready", tokens_per_s=0.5))


def test_a_busy_node_takes_one_line_of_80_columns() -> None:
    core = Row("core-eu", "core", "eu", "draining", 0.2, 16, 64, 0.5, 112.5, 0.75)
    edge = Row("edge-eu", "edge", "eu", "ready", 0.2, 3, ttft_ms=51.4)
    header, *lines = [" ".join(line.split()) for line in shown(core, edge).splitlines()]
    assert header == "node role region state heard load KV tok/s hits TTFT"
    assert lines == [
        "core-eu core eu draining 0.2 s 16 run, 64 wait 50% 112.5 75%",
        "edge-eu edge eu ready 0.2 s 3 streams 51 ms",
    ]


def test_round_trips_and_tiers_stand_below() -> None:
    core = Row("c", "core", "eu", "ready", tiers=(("pool", 3, 4), ("host", 1, 9)))
    edge = Row("e", "edge", "eu", "ready", rtt_ms=(("c", 0.44), ("d", 80.0)))
    *_, ways, tiers = [" ".join(line.split()) for line in shown(core, edge).splitlines()]
    assert ways == "round trips e c 0.4 ms, d 80.0 ms"
    assert tiers == "KV blocks c pool 3 of 4, host 1 of 9"


def test_a_mesh_of_an_older_version_is_one_clear_error(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FIRSTLIGHT_STATE_DIR", str(state))
    mesh = RunningMesh(os.getpid(), "https://127.0.0.1:9", (), str(state / "ca.pem"), "m")
    replace(mesh, cores=()).write(state)
    assert cli.run(["status"]) == 1
    assert "older firstlight" in capsys.readouterr().err


def test_a_status_without_a_mesh_says_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FIRSTLIGHT_STATE_DIR", str(tmp_path))
    assert cli.run(["status"]) == 1
    assert "firstlight up" in capsys.readouterr().err
