"""The command from its arguments to its last line."""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai_bed
import pytest
from openai_bed import openai_server

from firstlight.infra import cli
from firstlight.infra.bench import machine
from firstlight.infra.bench.engine import invariant
from firstlight.infra.bench.engine.measure import PARTS, Measured, Report, chosen
from firstlight.infra.bench.engine.own import ENGINE, plan
from firstlight.infra.bench.engine.prompts import Prompts
from firstlight.infra.bench.engine.report import as_object, table
from firstlight.infra.bench.engine.scenarios import Outcome
from firstlight.shared.errors import ConfigError
from firstlight.shared.text.tokenizer import Tokenizer

Capture = pytest.CaptureFixture[str]
KEYS = {
    *("class", "invariant", "perplexity_ratio", "perplexity", "memory_mb", "memory"),
    *("single_32", "single_512", "single_2048", "streams_16", "streams_64"),
    *("interference", "prefix"),
}


def write_peer(directory: Path, token_s: float) -> str:
    """A command that serves the API and writes each prompt to the file `asked`."""
    script = (
        f"import sys; sys.path.insert(0, {str(Path(openai_bed.__file__).parent)!r})\n"
        "from openai_bed import OpenAiServer, Threads, handler\n"
        f"server = OpenAiServer(token_s={token_s}, log={str(directory / 'asked')!r})\n"
        "Threads(('127.0.0.1', int(sys.argv[1])), handler(server)).serve_forever()\n"
    )
    (directory / "peer.py").write_text(script)
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(directory / 'peer.py'))} {{port}}"


@pytest.mark.usefixtures("tokenizer_at_hand")
def test_the_last_line_is_one_object_with_all_keys(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invariant, "COUNT", 3)
    arguments = ["--only", "single_32,streams_16", "--repeats", "2", "--json"]
    with openai_server(extra={"class": "abc"}) as bed:
        assert cli.run(["bench", "engine", "--url", bed.url, *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = json.loads(lines[-1])
    assert told.keys() == KEYS
    assert (told["class"], told["invariant"], told["perplexity_ratio"]) == ("abc", True, None)
    assert told["single_32"].keys() == {
        *("ttft_ms", "tpot_ms", "tokens_per_s", "foreign_cpu", "failed", "repeats")
    }
    assert len(told["single_32"]["repeats"]) == 2
    assert told["single_32"]["failed"] == 0
    assert told["prefix"] is None
    assert any(line.startswith("streams_16  ttft_ms") for line in lines)
    singles = [body for body in bed.bodies if body["stream"] and body["max_tokens"] == 128]
    assert len({body["prompt"] for body in singles}) == 3  # a warm-up and two repeats


@pytest.mark.usefixtures("tokenizer_at_hand")
def test_a_peer_is_measured_with_the_same_prompts(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FIRSTLIGHT_STATE_DIR", str(tmp_path))
    peer = write_peer(tmp_path, token_s=0.001)
    arguments = ["--only", "single_32", "--repeats", "1", "--json", "--peer", peer]
    with openai_server() as bed:
        assert cli.run(["bench", "engine", "--url", bed.url, *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = json.loads(lines[-1])
    assert told["peer"].keys() == KEYS
    assert told["peer"]["single_32"]["tpot_ms"] >= 1.0
    assert told["peer"]["class"] is None
    assert told["peer"]["memory_mb"] is None or told["peer"]["memory_mb"] > 1
    assert any("ours / peer" in line for line in lines)
    theirs = (tmp_path / "asked").read_text().splitlines()
    assert theirs == [body["prompt"] for body in bed.bodies]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "single_33"], "single_33"),
        (["--only", ","], "','"),
        (["--peer", "serve"], "{port}"),
        (["--classes", "q3"], "q3"),
        (["--url", "http://127.0.0.1:9/v1"], "no server answers at http://127.0.0.1:9/v1/models"),
    ],
)
@pytest.mark.usefixtures("tokenizer_at_hand")
def test_what_cannot_be_measured_is_one_line(
    arguments: list[str], said: str, capsys: Capture
) -> None:
    assert cli.run(["bench", "engine", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_parts_run_in_their_own_order() -> None:
    assert chosen(None) == PARTS
    assert chosen("prefix, single_32") == ("single_32", "prefix")
    with pytest.raises(ConfigError, match="no scenario 'speed'"):
        chosen("speed,prefix")


def test_prompts_are_exact_new_and_the_same_for_the_same_seed(tokenizer: Tokenizer) -> None:
    prompts = Prompts(tokenizer, 1)
    made = [prompts.of(tokens, "a", index) for tokens in (32, 3000) for index in range(3)]
    lengths = [len(tokenizer.encode(text, special=False)) for text in made]
    assert lengths == [32, 32, 32, 3000, 3000, 3000]
    assert len({text[:60] for text in made}) == 6
    assert Prompts(tokenizer, 1).of(32, "a", 0) == made[0]
    assert Prompts(tokenizer, 2).of(32, "a", 0) != made[0]


def measured(*first_ms: float) -> Measured:
    found = Measured()
    for value in first_ms:
        found.add(Outcome({"ttft_ms": value}), 0.01 * value)
    return found


def test_the_table_compares_medians_and_shows_their_spread() -> None:
    ours, peer = Report({"single_32": measured(3, 1, 2)}), Report({"single_32": measured(4, 4, 4)})
    lines = [" ".join(line.split()) for line in table(ours, peer)]
    assert "single_32 ttft_ms 2.0 (1.0–3.0) 4.0 (4.0–4.0) 0.50 better" in lines
    assert "single_32 foreign_cpu 0.020 (0.010–0.030) 0.040 (0.040–0.040)" in lines


def test_the_object_has_the_worst_foreign_share_and_the_ratio_of_the_last_class() -> None:
    report = Report({"single_32": measured(3, 1, 2)}, differing=["greedy 1"])
    told = as_object(report, {"bf16": 10.0, "q8": 10.1, "auto": 10.5})
    assert told["single_32"]["foreign_cpu"] == 0.03
    assert told["single_32"]["ttft_ms"] == 2
    assert told["single_32"]["tpot_ms"] is None
    assert told["perplexity_ratio"] == 1.05
    assert told["invariant"] is False


def test_our_mesh_is_one_core_and_one_edge_with_room_for_every_load() -> None:
    made = plan(lambda count: list(range(1, count + 1)), threads=3)
    assert made.names == ("lb", "edge", "core")
    core = made.node("core").settings
    assert core["model"] == {"threads": 3}
    assert core["engine"] == ENGINE
    assert made.edges[0].url == f"https://{made.node('edge').settings['listen']}"


def test_keys_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["bench", "engine", "--api-key", "secret", "--seed", "2", "--key=hidden"]
    monkeypatch.setattr(sys, "argv", ["somewhere/bin/firstlight", *given])
    monkeypatch.setitem(sys.modules, "__main__", machine)
    monkeypatch.setattr(machine, "__spec__", None)
    line = machine.heading().splitlines()[0]
    assert line == "firstlight bench engine --api-key '…' --seed 2 '--key=…'"


@pytest.mark.parametrize("arguments", [["bench"], ["bench", "engine"]])
def test_the_group_and_its_command_have_help(arguments: list[str], capsys: Capture) -> None:
    assert cli.run([*arguments, "--help"]) == 0
    assert "Usage: firstlight " + " ".join(arguments) in capsys.readouterr().out


def test_sigterm_in_the_middle_ends_the_peer_too(tmp_path: Path) -> None:
    """While the peer is asked, which takes far longer than this test."""
    peer = write_peer(tmp_path, token_s=0.1)
    with openai_server() as bed:
        arguments = ["--url", bed.url, "--only", "single_32", "--peer", peer]
        command = [sys.executable, "-m", "firstlight", "bench", "engine", *arguments]
        environment = {**os.environ, "FIRSTLIGHT_STATE_DIR": str(tmp_path)}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as running:
            assert running.stdout is not None
            while b"the peer at" not in (line := running.stdout.readline()):
                assert line, "it ended before the peer was up"
            while not (tmp_path / "asked").exists():
                time.sleep(0.01)
            running.terminate()
            assert running.wait(20) == 143
    url = line.decode().split()[-1]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/models", trust_env=False)


def test_a_failed_request_or_a_text_that_differs_makes_a_measurement_fail() -> None:
    fine, broken = measured(3, 1, 2), measured(3, 1, 2)
    broken.failed = 1
    assert Report({"single_32": fine}).sound
    assert Report({"single_32": fine}, differing=[]).sound
    assert not Report({"single_32": fine}, differing=["greedy 1"]).sound
    assert not Report({"single_32": fine, "prefix": broken}).sound
