"""`firstlight doctor` as a command: its exit code, its object, its patience."""

import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from firstlight.global_lb.config import LbSettings
from firstlight.infra import cli, doctor
from firstlight.infra.checks.finding import SEEN_CHARS_MAX, Check, Finding, Level, bad, ok, warn
from firstlight.infra.checks.subject import Subject, plain, sections
from firstlight.shared.redis_client import RedisConfig
from firstlight.shared.types import Role


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return Subject(((Role.LB, plain(Role.LB)),), tmp_path)


def run(arguments: list[str], state: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "firstlight", "doctor", *arguments],
        env={**os.environ, "FIRSTLIGHT_STATE_DIR": str(state)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def lb_file(tmp_path: Path, listen: str) -> Path:
    config = tmp_path / "lb.yaml"
    config.write_text(f"http: {{listen: '{listen}'}}\ncontrol: {{listen: '127.0.0.1:0'}}\n")
    return config


def test_a_healthy_node_is_one_object_with_exit_code_0(tmp_path: Path) -> None:
    config = lb_file(tmp_path, "127.0.0.1:0")
    done = run(["--config", str(config), "--role", "lb", "--json"], tmp_path / "state")
    assert (done.returncode, done.stderr) == (0, "")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["ok"] is True
    assert told["counts"]["bad"] == 0
    names = {one["name"] for one in told["findings"]}
    assert {"packages", "port lb http.listen", "open files", "state directory"} <= names
    assert not (tmp_path / "state").exists()


def test_a_port_that_is_taken_is_told_to_people_with_exit_code_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = lb_file(tmp_path, f"127.0.0.1:{taken.getsockname()[1]}")
        done = run(["--config", str(config), "--role", "lb"], tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "→ see who has it" in done.stdout
    assert done.stdout.splitlines()[-1] == "Broken: port lb http.listen."


def test_settings_that_cannot_be_loaded_are_a_finding_beside_the_others(tmp_path: Path) -> None:
    config = tmp_path / "lb.yaml"
    config.write_text("color: red\n")
    done = run(["--config", str(config), "--role", "lb", "--json"], tmp_path)
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert told["findings"][0]["name"] == "configuration"
    assert "color" in told["findings"][0]["seen"]
    assert "open files" in {one["name"] for one in told["findings"]}


def test_a_configuration_without_a_role_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["doctor", "--config", str(tmp_path / "x.yaml")]) == 1
    assert "--role" in capsys.readouterr().err


def test_a_check_that_breaks_is_a_finding_and_the_others_stay(subject: Subject) -> None:
    def breaks(subject: Subject) -> list[Finding]:
        raise ZeroDivisionError("by\nzero")

    checks = [Check("one", breaks), Check("two", lambda _: [ok("two", "fine")])]
    one, two = doctor.examine(subject, checks)
    assert (one.level, one.seen) == (Level.BAD, "this check broke: ZeroDivisionError: by zero")
    assert two.level is Level.OK


def test_a_check_that_hangs_is_given_up_and_the_others_stay(subject: Subject) -> None:
    released = threading.Event()

    def hangs(subject: Subject) -> list[Finding]:
        released.wait(30)
        return [bad("one", "too late", "")]

    checks = [Check("one", hangs, 0.05), Check("two", lambda _: [ok("two", "fine")], 20.0)]
    one, two = doctor.examine(subject, checks)
    released.set()
    assert one.level is Level.WARN
    assert one.seen.startswith("not looked at, because it took more than")
    assert two.level is Level.OK


def test_the_verdict_names_what_is_broken() -> None:
    assert "Nothing is broken." in doctor.verdict([ok("a", "")])
    assert "Nothing is broken, 1 to look at." in doctor.verdict([ok("a", ""), warn("b", "", "")])
    assert "Broken: c." in doctor.verdict([warn("b", "", ""), bad("c", "", "")])


def test_what_a_finding_quotes_stays_one_line_of_bounded_length() -> None:
    found = bad("a", "x\n" * 1000, "do\nthis")
    assert "\n" not in found.seen
    assert len(found.seen) == SEEN_CHARS_MAX
    assert found.do == "do this"


def test_more_load_balancers_than_are_asked_are_named(tmp_path: Path) -> None:
    config = tmp_path / "edge.yaml"
    many = [f"127.0.0.1:{port}" for port in range(1, 2 + doctor.PEERS_MAX)]
    config.write_text(json.dumps({"load_balancers": many}))
    subject, _ = doctor.subject_of(config, Role.EDGE)
    last = [check for check in doctor.checks_for(subject) if many[-1] in check.name]
    (found,) = last[0].look(subject)
    assert "only 16 other machines are asked" in found.seen


def test_every_section_is_walked_whatever_it_is_for() -> None:
    values = dict(sections(plain(Role.EDGE)))
    assert values["tls.directory"] is None
    assert list(values).index("http") < list(values).index("http.body_bytes_max")


def test_every_redis_of_the_settings_gets_a_check(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Index:
        server: RedisConfig = field(default_factory=lambda: RedisConfig("redis://127.0.0.1:9"))

    class WithRedis(LbSettings):
        index: Index = Index()
        quotas: RedisConfig = RedisConfig()

    checks = doctor.checks_for(Subject(((Role.LB, WithRedis()),), tmp_path))
    (found,) = [check for check in checks if check.name == "lb index.server"]
    (finding,) = found.look(Subject((), tmp_path))
    assert finding.level is Level.BAD
    assert not any("quotas" in check.name for check in checks)
