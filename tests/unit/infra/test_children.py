"""A child process as the launcher sees it, with real processes that stand in for a node."""

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep

import psutil
import pytest

from firstlight.infra.children import Child, start_child
from firstlight.infra.running import pid_alive
from firstlight.shared.errors import ConfigError

StartProgram = Callable[[str], Child]


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            return True
        sleep(0.02)
    return False


@pytest.fixture
def start_program(tmp_path: Path) -> Iterator[StartProgram]:
    started: list[Child] = []

    def start(program: str) -> Child:
        out_file, err_file = tmp_path / "n.out", tmp_path / "n.err"
        with out_file.open("wb") as out, err_file.open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(program)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
            )
        started.append(Child("n", process, out_file, err_file))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.wait(5)
        child.close()


def test_the_ready_line_is_found_among_other_output(start_program: StartProgram) -> None:
    child = start_program("""
        print('{"ready": false}')
        print("hello")
        print('{"ready": true, "node": "n", "address": "127.0.0.1:1"}', flush=True)
        input()
    """)
    assert wait_until(child.poll_ready)
    assert child.ready == {"ready": True, "node": "n", "address": "127.0.0.1:1"}


def test_half_a_line_is_not_taken_for_a_ready_line(start_program: StartProgram) -> None:
    child = start_program("""
        import sys
        sys.stdout.write('{"ready": true}')
        sys.stdout.flush()
        sys.stdin.read(1)
        print(flush=True)
        sys.stdin.read(1)
    """)
    assert wait_until(lambda: child.out_file.stat().st_size > 0)
    assert not child.poll_ready()
    assert child.process.stdin is not None
    child.process.stdin.write(b"x")
    child.process.stdin.flush()
    assert wait_until(child.poll_ready)


def test_a_child_that_dies_early_is_an_error_with_its_last_words(
    start_program: StartProgram,
) -> None:
    child = start_program("raise SystemExit('port 7 is in use')")
    assert child.wait(10)
    with pytest.raises(ConfigError, match=r"n ended before it was ready \(exit 1\): port 7 is in"):
        child.poll_ready()


def test_a_killed_child_is_gone_and_says_by_which_signal(start_program: StartProgram) -> None:
    child = start_program("input()")
    child.kill()
    assert child.wait(10)
    assert not child.alive
    assert not pid_alive(child.process.pid)
    assert "killed by signal 9" in child.obituary("now")


def test_a_real_node_is_started_with_its_files_in_place(tmp_path: Path) -> None:
    child = start_child("lb", ["lb", "--print-config"], tmp_path)
    assert child.wait(30)
    child.close()
    assert child.process.returncode == 0
    assert "node: " in (tmp_path / "lb.out").read_text()
    assert child.tail()


def test_a_frozen_child_stands_still_at_once_and_goes_on_when_it_is_thawed(
    start_program: StartProgram,
) -> None:
    child = start_program("""
        print('{"ready": true}', flush=True)
        while True:
            print(".", end="", flush=True)
    """)
    assert wait_until(child.poll_ready)
    for _ in range(20):
        assert child.freeze(5)
        written = child.out_file.stat().st_size
        assert psutil.Process(child.process.pid).status() == psutil.STATUS_STOPPED
        sleep(0.005)
        assert child.out_file.stat().st_size == written
        child.thaw()
        assert wait_until(lambda: child.out_file.stat().st_size > written)  # noqa: B023


def test_one_that_stands_still_already_is_frozen_at_once(start_program: StartProgram) -> None:
    child = start_program("import time; time.sleep(60)")
    assert child.freeze(5)
    assert child.freeze(0.2)
    child.thaw()


def test_one_that_has_ended_is_not_waited_for_until_it_stands_still(
    start_program: StartProgram,
) -> None:
    child = start_program("pass")
    assert child.wait(10)
    assert child.freeze(5)
    child.thaw()
