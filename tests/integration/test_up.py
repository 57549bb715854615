"""`firstlight up` on a terminal, and `firstlight status` beside a running mesh."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from terminal import SHOW_CURSOR, Terminal

from firstlight.infra.chat import Question, ask
from firstlight.infra.mesh import Mesh


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Terminal]:
    """`firstlight up` with a mesh of its own, whose view has been drawn."""
    state = {"FIRSTLIGHT_STATE_DIR": str(tmp_path)}
    opened = Terminal(["-m", "firstlight", "up"], state)
    try:
        opened.read_until(lambda seen: b"round trips" in seen, timeout_s=240)
        yield opened
    finally:
        opened.close()


def child(terminal: Terminal, name: str) -> psutil.Process:
    children = psutil.Process(terminal.process.pid).children()
    return next(c for c in children if any(f"{name}.yaml" in word for word in c.cmdline()))


def test_up_shows_its_mesh_and_ctrl_c_ends_it_cleanly(up: Terminal) -> None:
    up.read_until(lambda seen: seen.count(b"core-us") >= 4)
    up.press_ctrl_c()
    up.read_until(lambda seen: b"Stopped; 0 processes left over." in seen)
    assert up.process.wait(30) == 0
    assert b"Traceback" not in up.seen
    assert SHOW_CURSOR in up.seen


def test_up_shows_a_core_that_died_and_ends_with_its_last_words(up: Terminal) -> None:
    child(up, "core-us").kill()
    up.read_until(lambda seen: b"core-us ended unasked (killed by signal 9)" in seen)
    assert up.process.wait(30) == 1
    assert b"Stopped; 0 processes left over." in up.seen
    drawn = up.seen[: up.seen.rfind(SHOW_CURSOR)]
    assert b"ended" in drawn


def status(mesh_state: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "firstlight", "status", *arguments],
        env={**os.environ, "FIRSTLIGHT_STATE_DIR": str(mesh_state)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_status_tells_every_node_of_the_running_mesh(mesh: Mesh, mesh_state: Path) -> None:
    question = Question("Count from one to nine.", temperature=0.0, max_tokens=8)
    await ask(mesh.plan.edges[0].url, question, ca_file=mesh.ca_file)
    told: dict[str, Any] = json.loads(status(mesh_state, "--json"))
    found = {node["node"]: node for node in told["nodes"]}
    assert {name: node["state"] for name, node in found.items()} == dict.fromkeys(
        ("lb", *(peer.name for peer in mesh.plan.peers)), "ready"
    )
    core, edge = found["core-eu"], found["edge-eu"]
    assert (core["running"], core["queued"]) == (0, 0)
    assert core["tokens_per_s"] is not None
    assert 0 <= core["prefix_hit_rate"] <= 1
    assert core["tiers"][0][0] == "pool"
    assert edge["ttft_ms"] > 0
    assert {name for name, _ in edge["rtt_ms"]} == {"core-eu", "core-us"}


def test_status_is_a_table_for_people(mesh: Mesh, mesh_state: Path) -> None:
    text = status(mesh_state)
    assert all(f"{name} " in text for name in mesh.plan.names)
    assert "round trips" in text


def test_the_admin_addresses_of_the_mesh_file_answer(mesh: Mesh) -> None:
    for core in mesh.running.cores:
        answer = httpx.get(f"http://{core.admin}/readyz", trust_env=False)
        assert answer.status_code == 200
