"""The command line's promises: one line an error, exit codes, nothing heavy too early."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from firstlight.infra import cli

Capture = pytest.CaptureFixture[str]


def one_line(capsys: Capture) -> str:
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("firstlight: ")
    return line


COMMANDS = [
    "demo",
    "up",
    "status",
    "doctor",
    "edge",
    "core",
    "lb",
    "dns",
    "drain",
    "route",
    "geoip",
    "chat",
    "explain",
    "trace",
]


def test_version_is_printed(capsys: Capture) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == "firstlight 0.1.0\n"


def test_without_arguments_the_commands_are_listed(capsys: Capture) -> None:
    assert cli.run([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: Capture) -> None:
    assert cli.run([command, "--help"]) == 0
    assert "Usage: firstlight " + command in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "nope"),
        (["demo", "--nope"], "--nope"),
        (["chat"], "TEXT"),
        (["chat", "--http", "4", "hi"], "'4'"),
        (["chat", "--max-tokens", "0", "hi"], "--max-tokens"),
        (["chat", "--seed", "x", "hi"], "--seed"),
        (["explain"], "ID"),
        (["trace"], "CORE"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: Capture
) -> None:
    assert cli.run(arguments) == 2
    assert said in one_line(capsys)


@pytest.mark.parametrize("role", ["edge", "core", "lb", "dns"])
def test_a_missing_configuration_file_is_named(role: str, tmp_path: Path, capsys: Capture) -> None:
    missing = tmp_path / "missing.yaml"
    assert cli.run([role, "--config", str(missing)]) == 1
    assert str(missing) in one_line(capsys)


@pytest.mark.parametrize("role", ["edge", "core", "lb"])
def test_unknown_keys_of_a_file_are_named_on_one_line(
    role: str, tmp_path: Path, capsys: Capture
) -> None:
    config = tmp_path / "node.yaml"
    config.write_text("color: red\ntls: {sides: 3}\n")
    assert cli.run([role, "--config", str(config)]) == 1
    line = one_line(capsys)
    assert "color" in line
    assert "tls.sides" in line
    assert str(config) in line


@pytest.mark.parametrize("role", ["edge", "core", "lb"])
def test_printed_settings_can_be_read_back(role: str, tmp_path: Path, capsys: Capture) -> None:
    config = tmp_path / "node.yaml"
    config.write_text("node: somewhere\n")
    assert cli.run([role, "--config", str(config), "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert "node: somewhere\n" in printed
    config.write_text(printed)
    assert cli.run([role, "--config", str(config), "--print-config"]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("command", ["chat", "explain"])
def test_a_command_without_a_mesh_says_how_to_start_one(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("FIRSTLIGHT_STATE_DIR", str(tmp_path))
    assert cli.run([command, "hi"]) == 1
    assert "firstlight up" in one_line(capsys)


def test_an_empty_question_is_refused(capsys: Capture) -> None:
    assert cli.run(["chat", "  "]) == 1
    assert "empty" in one_line(capsys)


def test_an_empty_id_or_key_is_refused(capsys: Capture) -> None:
    assert cli.run(["explain", " "]) == 1
    assert "the id is empty" in one_line(capsys)
    assert cli.run(["explain", "--key", " ", "chatcmpl-1"]) == 1
    assert "the key is empty" in one_line(capsys)


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("firstlight.infra.up.run_up", interrupted)
    assert cli.run(["up"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("debug", [True, False])
def test_a_defect_is_one_line_and_its_traceback_waits_for_debug(
    debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def broken() -> int:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("firstlight.infra.up.run_up", broken)
    assert cli.run(["--debug", "up"] if debug else ["up"]) == 1
    shown = capsys.readouterr().err
    assert ("Traceback" in shown) == debug
    assert "unexpected ZeroDivisionError: by zero (run with --debug" in shown.splitlines()[-1]


def test_what_an_installation_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.delitem(sys.modules, "firstlight.shared.geography.geoip", raising=False)
    monkeypatch.setitem(sys.modules, "maxminddb", None)
    assert cli.run(["geoip", "lookup", "192.0.2.1"]) == 1
    said = one_line(capsys)
    assert "needs maxminddb, which is not installed" in said
    assert "pip install '.[ROLE]'" in said  # no registry has it


def test_a_module_of_ours_that_is_not_there_is_a_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "firstlight.infra.up", None)
    assert cli.run(["up"]) == 1
    assert "unexpected ModuleNotFoundError" in one_line(capsys)


def test_a_port_in_use_is_one_line_that_names_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = tmp_path / "lb.yaml"
        config.write_text(
            f"http: {{listen: '127.0.0.1:{port}'}}\ncontrol: {{listen: '127.0.0.1:0'}}\n"
            f"tls: {{directory: {tmp_path}}}\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "firstlight", "lb", "--config", str(config)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert str(port) in line
    assert "in use" in line


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["chat", "hi"], ["explain", "x"], ["lb", "--print-config"], ["doctor"]],
)
def test_light_commands_never_load_torch(arguments: list[str], tmp_path: Path) -> None:
    program = (
        "import sys; from firstlight.infra import cli; "
        f"cli.run({arguments!r}); sys.exit('torch' in sys.modules)"
    )
    environment = {"FIRSTLIGHT_STATE_DIR": str(tmp_path), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr
