"""A whole laboratory: what people see of it, a command at a user's place, its end by SIGKILL."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from terminal import Terminal

from firstlight.infra.lab.leftovers import marked
from firstlight.infra.lab.shell import LAB_GONE
from firstlight.shared.config import environment_of

TOPOLOGY: dict[str, Any] = {
    "regions": {"eu": {}, "us": {}},
    "nodes": {
        "lb": {"role": "lb", "region": "us"},
        "edge": {"role": "edge", "region": "eu"},
        "core": {"role": "core", "region": "us", "settings": {"engine": {"blocks": 64}}},
        "valkey": {"role": "valkey", "region": "us"},
        "user": {"role": "client", "region": "eu"},
    },
    "links": [
        {"between": ["eu", "us"], "rtt_ms": 60},
        {"between": ["user", "edge"], "rtt_ms": 10},
    ],
}
FIRSTLIGHT = [sys.executable, "-m", "firstlight"]
PROCESSES = {"lb", "edge", "core", "valkey", "router"}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def file(state: Path) -> Path:
    path = state / "topology.yaml"
    path.write_text(yaml.safe_dump(TOPOLOGY))
    return path


@pytest.fixture(scope="module")
def lab(state: Path, file: Path) -> Iterator[Terminal]:
    """`firstlight lab up` on a terminal, whose map has been drawn; it is killed at the end."""
    environment = {"FIRSTLIGHT_STATE_DIR": str(state)}
    opened = Terminal(["-m", "firstlight", "lab", "up", str(file)], environment)
    try:
        opened.read_until(lambda seen: seen.count(b"packets/s") >= 2, timeout_s=240)
        yield opened
    finally:
        opened.close()


def run(state: Path, *arguments: str, code: int = 0) -> str:
    """Standard output of a `firstlight lab` command that must end so."""
    done = subprocess.run(
        [*FIRSTLIGHT, "lab", *arguments],
        env={**os.environ, "FIRSTLIGHT_STATE_DIR": str(state)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def ps(state: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run(state, "ps", "--json"))
    return told


def chat(state: Path) -> dict[str, Any]:
    question = ["chat", "--json", "--seed", "5", "--max-tokens", "6", "Say something."]
    answer: dict[str, Any] = json.loads(run(state, "shell", "user", "--", *FIRSTLIGHT, *question))
    return answer


def test_a_user_asks_from_its_own_place_and_waits_for_the_way(lab: Terminal, state: Path) -> None:
    answer = chat(state)
    assert (answer["protocol"], answer["edge"], answer["core"]) == ("h3", "edge", "core")
    assert answer["ttft_ms"]["client_first_token"] >= 70


def test_the_map_shows_round_trips_measured_and_asked(lab: Terminal, state: Path) -> None:
    assert "edge → core".encode() in lab.seen
    assert b"60.0 ms" in lab.seen
    told = json.loads(run(state, "links", "--json"))
    ways = {(path["from"], path["to"]) for path in told["paths"]}
    assert {("edge", "core"), ("core", "edge"), ("edge", "lb")} <= ways


def test_a_fault_is_seen_on_the_map_and_mended(lab: Terminal, state: Path) -> None:
    run(state, "fault", "partition", "user", "edge")
    fault = "user → edge: partition".encode()
    lab.read_until(lambda seen: fault in seen)
    run(state, "fault", "heal")
    lab.read_until(lambda seen: b"no faults" in seen[seen.rfind(fault) :])


def test_a_node_is_killed_from_another_terminal_and_started_again(
    lab: Terminal, state: Path
) -> None:
    before = ps(state)["nodes"]["valkey"]["pid"]
    assert run(state, "fault", "kill", "valkey") == "kill: valkey\n"
    assert "valkey does not run" in run(state, "fault", "freeze", "valkey", code=1)
    assert run(state, "fault", "kill", "valkey", "--end") == "kill ended: valkey\n"
    assert ps(state)["nodes"]["valkey"]["pid"] != before
    assert "slow needs it" in run(state, "fault", "slow", "core", code=1)


def test_every_process_has_its_place(lab: Terminal, state: Path) -> None:
    told = ps(state)["nodes"]
    with_process = {name for name, node in told.items() if node["pid"]}
    assert with_process == PROCESSES
    places = {name: os.readlink(f"/proc/{told[name]['pid']}/ns/net") for name in PROCESSES}
    assert len(set(places.values())) == len(PROCESSES)
    assert os.readlink("/proc/self/ns/net") not in set(places.values()) - {places["router"]}


def test_a_shell_at_no_node_is_refused(lab: Terminal, state: Path) -> None:
    said = run(state, "shell", "mars", "--", "true", code=1)
    assert "no node is called 'mars': operator, " in said


def test_the_exit_code_of_a_command_is_its_own(lab: Terminal, state: Path) -> None:
    run(state, "shell", "user", "--", "sh", "-c", "exit 7", code=7)


def test_after_sigkill_a_shell_ends_too_and_ends_what_cannot_end_itself(
    lab: Terminal, state: Path
) -> None:
    told = ps(state)
    folder = Path(told["run"])
    shell = [*FIRSTLIGHT, "lab", "shell", "user", "--", "sh", "-c", "echo; sleep 600"]
    environment = {**os.environ, "FIRSTLIGHT_STATE_DIR": str(state)}
    with subprocess.Popen(shell, env=environment, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        user.stdout.readline()
        os.kill(told["nodes"]["core"]["pid"], signal.SIGSTOP)
        lab.process.send_signal(signal.SIGKILL)
        lab.process.wait(10)
        assert user.wait(30) == LAB_GONE
    assert marked(folder) == []
    assert "no laboratory runs here" in run(state, "ps", code=1)


def test_the_next_start_removes_what_a_killed_one_left(state: Path, file: Path) -> None:
    folder = state / "lab" / "runs" / "0badcafe"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    environment = environment_of(folder)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as frozen:
        assert frozen.stdout is not None
        frozen.stdout.readline()
        frozen.send_signal(signal.SIGSTOP)
        broken = file.with_name("broken.yaml")
        coreless = {name: node for name, node in TOPOLOGY["nodes"].items() if name != "core"}
        broken.write_text(yaml.safe_dump({**TOPOLOGY, "nodes": coreless}))
        assert "none has the role core" in run(state, "up", str(broken), code=1)
        assert frozen.wait(10) == -signal.SIGKILL
    assert list((state / "lab" / "runs").iterdir()) == []
