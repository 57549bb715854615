"""Where a run's histories may lie, and where they are kept."""

from pathlib import Path

import pytest

from firstlight.infra.scenario.run import check_free, keep
from firstlight.shared.errors import ConfigError


def test_histories_that_are_kept_are_never_mixed_with_those_of_another_run(tmp_path: Path) -> None:
    for number in ("1", "2"):
        (tmp_path / number).mkdir()
        (tmp_path / number / f"{number}.jsonl").touch()
        keep(tmp_path / number, tmp_path, "c-7")
    assert [file.name for file in (tmp_path / "c-7.histories").iterdir()] == ["1.jsonl"]
    assert [file.name for file in (tmp_path / "c-7-2.histories").iterdir()] == ["2.jsonl"]


def test_histories_that_cannot_be_kept_cost_a_line_and_not_the_report(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    (tmp_path / "some").mkdir()
    assert "cannot be kept" in keep(tmp_path / "some", tmp_path / "here", "c-7")


def test_a_directory_with_histories_of_others_is_refused_without_a_run_file_too(
    tmp_path: Path,
) -> None:
    check_free(tmp_path / "new")
    (tmp_path / "new" / "core.1.2.jsonl").touch()
    with pytest.raises(ConfigError, match="holds another run already"):
        check_free(tmp_path / "new")


def test_a_directory_that_cannot_be_made_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Not a directory"):
        check_free(tmp_path / "file" / "below")
