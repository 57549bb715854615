"""What `firstlight judge` prints, and its exit code."""

import json
from pathlib import Path

import pytest
from judge_bed import COMMAND, Altered
from unit.infra.judge.test_planted_faults import doubled

from firstlight.infra import cli
from firstlight.infra.judge.run_file import ENDING, NAME, RunRecord, read_run
from firstlight.shared.errors import ConfigError


def test_a_held_run_ends_with_0(histories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["judge", str(histories)]) == 0
    assert capsys.readouterr().out.startswith("held: I1, I2,")


def test_a_violated_run_ends_with_1_and_says_where_and_how_to_repeat_it(
    run: Altered, capsys: pytest.CaptureFixture[str]
) -> None:
    doubled(run)
    run.verdict()
    assert cli.run(["judge", str(run.folder)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "violated: I1 (no token lost, doubled or out of order) at edge"
    assert shown[2].split()[:4] == ["where", "edge.jsonl", "line", shown[2].split()[3]]
    assert "offset 7" in shown[2]
    assert "seed 9" in shown[3]
    assert shown[4] == f"  again  {COMMAND}"


def test_an_incomplete_run_ends_with_2(run: Altered, capsys: pytest.CaptureFixture[str]) -> None:
    run.run["nodes"].append("edge-us")
    run.verdict()
    assert cli.run(["judge", str(run.folder), "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["missing"]) == ("incomplete", ["edge-us left no history"])


def test_a_folder_without_histories_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["judge", str(tmp_path)]) == 1
    assert "0 histories" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_named_beside_one_that_is(
    run: Altered, capsys: pytest.CaptureFixture[str]
) -> None:
    run.verdict()
    gone = run.folder / "gone"
    assert cli.run(["judge", str(run.folder), str(gone)]) == 1
    assert f"{gone}: no such folder" in capsys.readouterr().err


def test_a_run_record_is_read_back_as_it_was(tmp_path: Path) -> None:
    record = RunRecord.begin(tmp_path, seed=4, command="x --seed 4", nodes=["a", "b"])
    number = record.fault("partition", "a", "b", lasting=True)
    record.fault("kill", "a", within_s=5)
    assert read_run(tmp_path) == record.run
    record.over(number)
    record.end()
    assert read_run(tmp_path) == record.run
    first, second = record.run.faults
    assert first.until is not None
    assert first.t <= first.over <= second.t + 1
    assert record.run.struck("b", {"partition"}, first.t)
    assert not record.run.struck("b", ENDING, first.t)
    assert not record.run.struck("c", {"partition", *ENDING}, 0)


@pytest.mark.parametrize("text", ["", "[]", '{"faults": [{}]}', '{"colour": 1}'])
def test_another_file_called_run_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(ConfigError, match="no record of a run"):
        read_run(tmp_path)
