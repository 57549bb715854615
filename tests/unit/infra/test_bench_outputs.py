"""Whether a result can be written is known before the run."""

from pathlib import Path

import pytest

from firstlight.infra import cli
from firstlight.infra.bench.outputs import check_output
from firstlight.shared.errors import ConfigError

Capture = pytest.CaptureFixture[str]


def test_a_new_file_and_one_that_is_there_can_be_written(tmp_path: Path) -> None:
    check_output(tmp_path / "new.html")
    assert not (tmp_path / "new.html").exists()
    (tmp_path / "old.html").write_text("before")
    check_output(tmp_path / "old.html")
    assert (tmp_path / "old.html").read_text() == "before"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        check_output(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no folder {tmp_path}/nowhere"):
        check_output(tmp_path / "nowhere" / "a.html")


@pytest.mark.parametrize(
    "command",
    [
        ["simulate", "--policies", "firstlight", "--html"],
        ["bench", "load", "--url", "http://127.0.0.1:1/v1", "--html"],
        ["bench", "load", "--url", "http://127.0.0.1:1/v1", "--json"],
    ],
)
def test_a_command_says_so_before_anything_runs(
    command: list[str], tmp_path: Path, capsys: Capture
) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,37,4\n")
    out = str(tmp_path / "nowhere" / "a")
    assert cli.run([*command, out, "--trace", str(trace)]) == 1
    said = capsys.readouterr()
    assert (said.out, "there is no folder" in said.err) == ("", True)
