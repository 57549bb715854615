"""What dies and what the client sees of it, with real processes and SIGKILL."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep

import psutil
import pytest

from firstlight.infra.chat import Asked, Question, ask
from firstlight.infra.mesh import Mesh, remove_stale_runs, start_mesh
from firstlight.infra.reply import Reply
from firstlight.infra.running import FILE_NAME
from firstlight.shared.errors import ConfigError

STORY = Question(
    "Tell me about a storm at sea.", seed=3, temperature=0.8, max_tokens=64, ignore_eos=True
)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    for _ in range(int(timeout_s / 0.05)):
        if condition():
            return True
        sleep(0.05)
    return condition()


async def asked(
    mesh: Mesh, on_text: Callable[[str, Reply], None] = lambda text, reply: None
) -> Asked:
    return await ask(mesh.plan.edges[0].url, STORY, ca_file=mesh.ca_file, on_text=on_text)


async def test_a_core_killed_in_mid_answer_changes_no_token(mesh: Mesh) -> None:
    undisturbed = await asked(mesh)
    killed: list[str] = []

    def kill_once(text: str, reply: Reply) -> None:
        if not killed and len(reply.token_ids) >= 20:
            killed.append(str(reply.details["core"]))
            mesh.kill(killed[0])

    moved = await asked(mesh, kill_once)
    assert killed == [undisturbed.summary()["core"]]
    assert len(moved.reply.token_ids) == 64
    assert moved.reply.token_ids == undisturbed.reply.token_ids
    assert moved.reply.text == undisturbed.reply.text
    summary = moved.summary()
    assert (summary["moved"], summary["continuation"]) == (1, "exact")
    assert summary["core"] not in killed


async def test_answers_go_on_without_the_load_balancer(mesh: Mesh) -> None:
    mesh.kill("lb")
    answer = await asked(mesh)
    assert len(answer.reply.token_ids) == 64
    assert answer.summary()["moved"] == 0


async def test_the_next_answer_after_a_core_died_comes_from_the_other(mesh: Mesh) -> None:
    mesh.kill("core-eu")
    answer = await asked(mesh)
    assert answer.summary()["core"] == "core-us"
    assert len(answer.reply.token_ids) == 64


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts `firstlight up` with a state directory of its own."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        environment = {**os.environ, "FIRSTLIGHT_STATE_DIR": str(tmp_path)}
        process = subprocess.Popen(
            [sys.executable, "-m", "firstlight", "up"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def gone(pid: int) -> bool:
    """Ended, even where nobody collects what a killed parent left."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def children_of(process: subprocess.Popen[str]) -> list[int]:
    return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]


def test_a_killed_launcher_leaves_no_process_and_its_files_go_with_the_next(
    launcher: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = launcher()
    assert wait_until((tmp_path / FILE_NAME).exists, 240)
    pids = children_of(process)
    assert len(pids) == 9  # nodes, index servers, and the guard of each of these
    process.kill()
    process.wait(10)
    assert wait_until(lambda: all(map(gone, pids)), 20)
    assert len(remove_stale_runs(tmp_path)) == 1
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_launcher_interrupted_while_it_starts_cleans_up(
    launcher: Callable[[], subprocess.Popen[str]], tmp_path: Path, number: int, code: int
) -> None:
    process = launcher()
    assert wait_until(lambda: len(list(tmp_path.glob("runs/*/*.err"))) == 7, 60)
    pids = children_of(process)
    process.send_signal(number)
    shown, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in shown
    assert all(map(gone, pids))
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_mesh_whose_ports_are_always_taken_gives_up_with_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    before = psutil.Process().children()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("firstlight.infra.mesh.free_ports", lambda count, rng: [port] * count)
        monkeypatch.setattr("firstlight.infra.mesh.STARTS_MAX", 2)
        with pytest.raises(ConfigError, match=rf"exit 1\).*{port}.*in use"):
            start_mesh(tmp_path, said.append)
    assert said == ["a port was taken in between; starting again with others"]
    assert list((tmp_path / "runs").iterdir()) == []
    assert not (tmp_path / FILE_NAME).exists()
    assert [c for c in psutil.Process().children() if c not in before] == []


async def test_an_edge_killed_in_mid_answer_changes_no_token(mesh: Mesh) -> None:
    undisturbed = await asked(mesh)
    here, there = mesh.plan.edges
    killed: list[str] = []

    def kill_once(text: str, reply: Reply) -> None:
        if not killed and len(reply.token_ids) >= 20:
            killed.append(here.node)
            mesh.kill(here.node)

    resumed = await ask(
        here.url, STORY, others=[there.url], ca_file=mesh.ca_file, on_text=kill_once
    )
    assert killed == [here.node]
    assert resumed.reply.token_ids == undisturbed.reply.token_ids
    assert resumed.reply.text == undisturbed.reply.text
    assert (resumed.resumed, resumed.summary()["edge"]) == (1, there.node)
