"""A peer is started, waited for and ended with its group."""

import os
import shlex
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from firstlight.infra.bench.engine.peer import peer_command, running_peer
from firstlight.shared.errors import ConfigError

PYTHON = shlex.quote(sys.executable)


def served(directory: Path) -> str:
    (directory / "v1").mkdir()
    (directory / "v1" / "models").write_text("{}")
    where = shlex.quote(str(directory))
    return f"{PYTHON} -m http.server {{port}} --bind 127.0.0.1 --directory {where}"


def test_the_port_is_put_where_the_command_names_it() -> None:
    assert peer_command("serve 'a b' --port {port}", 7) == ["serve", "a b", "--port", "7"]


@pytest.mark.parametrize(
    ("command", "said"), [("serve", r"no \{port\}"), ("serve '{port}", "cannot be read")]
)
def test_a_command_that_cannot_be_run_is_refused(command: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        peer_command(command, 1)


def gone(group: int) -> bool:
    """Whether all of a group end within a moment, as what was killed does."""
    deadline = time.monotonic() + 5
    while living(group) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not living(group)


def living(group: int) -> list[str]:
    """Processes of a group; one that has ended may wait for whoever inherited it to notice."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
            found += [stat.parent.name] * (int(of) == group and state != "Z")
    return found


def test_a_peer_answers_while_the_block_runs_and_is_gone_after(tmp_path: Path) -> None:
    with running_peer(served(tmp_path), tmp_path) as peer:
        assert httpx.get(f"{peer.url}/models", trust_env=False).status_code == 200
    with pytest.raises(ProcessLookupError):
        os.kill(peer.pid, 0)


def test_what_a_peer_started_ends_with_it(tmp_path: Path) -> None:
    shell = f"sh -c 'sleep 100 & echo $! > {tmp_path}/sleeper; exec {served(tmp_path)}'"
    with running_peer(shell, tmp_path) as peer:
        sleeper = int((tmp_path / "sleeper").read_text())
        assert os.getpgid(sleeper) == peer.pid
    assert gone(peer.pid)


def test_a_peer_that_does_not_end_is_killed_though_its_end_is_interrupted(tmp_path: Path) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    shell = f"sh -c 'trap \"\" TERM; {served(tmp_path)}'"
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            running_peer(shell, tmp_path) as peer,
        ):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert gone(peer.pid)


def test_a_peer_that_ends_says_its_last_words(tmp_path: Path) -> None:
    command = f"{PYTHON} -c 'raise SystemExit(\"no such model, {{port}}\")'"
    with (
        pytest.raises(ConfigError, match=r"before it answered \(exit 1\): no such model"),
        running_peer(command, tmp_path),
    ):
        pass


def test_a_peer_that_does_not_answer_is_not_waited_for_forever(tmp_path: Path) -> None:
    command = f"{PYTHON} -uc 'import time; print(\"loading {{port}}\"); time.sleep(60)'"
    with (
        pytest.raises(ConfigError, match=r"did not answer within"),
        running_peer(command, tmp_path, start_s=0.5),
    ):
        pass


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"cannot be started.*no-such-program"),
        running_peer("no-such-program {port}", tmp_path),
    ):
        pass
