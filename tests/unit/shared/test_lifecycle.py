"""A node stops in order on a signal, ends with its launcher, and tells an error in one line."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

_NODE = """
import asyncio, sys
from firstlight.shared import lifecycle
from firstlight.shared.errors import ConfigError

async def main(stop):
    if "fail" in sys.argv:
        raise ConfigError("port 1 is in use")
    lifecycle.ready("n1", "127.0.0.1:1", control="127.0.0.1:2")
    await stop.wait()
    print("stopping", flush=True)
    if "hang" in sys.argv:
        await asyncio.sleep(60)

level = "loud" if "loud" in sys.argv else "info"
sys.exit(lifecycle.run(main, log_level=level, until_stdin_closes="watch" in sys.argv))
"""


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", _NODE, *request.param],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("node", [[]], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_node_in_order(
    node: "subprocess.Popen[str]", number: signal.Signals
) -> None:
    assert json.loads(_line(node)) == {
        "ready": True,
        "node": "n1",
        "address": "127.0.0.1:1",
        "control": "127.0.0.1:2",
    }
    node.send_signal(number)
    assert _line(node) == "stopping"
    assert node.wait(10) == 0


@pytest.mark.parametrize("node", [["hang"]], indirect=True)
def test_a_second_signal_ends_it_at_once(node: "subprocess.Popen[str]") -> None:
    _line(node)
    node.send_signal(signal.SIGTERM)
    assert _line(node) == "stopping"
    begun = time.monotonic()
    node.send_signal(signal.SIGTERM)
    assert node.wait(10) == 130
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("node", [["watch"]], indirect=True)
def test_a_node_ends_when_its_launcher_is_gone(node: "subprocess.Popen[str]") -> None:
    _line(node)
    assert node.stdin is not None
    node.stdin.close()
    assert _line(node) == "stopping"
    assert node.wait(10) == 0


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (["fail"], "firstlight: port 1 is in use\n"),
        (["loud"], "firstlight: log_level 'loud', expected one of debug, info, warning, error\n"),
    ],
    indirect=["node"],
)
def test_an_error_of_ours_is_one_line_and_exit_code_one(
    node: "subprocess.Popen[str]", said: str
) -> None:
    _, stderr = node.communicate(timeout=10)
    assert (node.returncode, stderr) == (1, said)
