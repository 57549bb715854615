"""Key files that a node would, or would not, start with."""

from pathlib import Path

from firstlight.infra.checks.finding import Level
from firstlight.infra.checks.secrets import judge


def test_a_file_of_keys_is_well_and_shows_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{'ab' * 32}\n{'cd' * 32}\n")
    found = judge("core kv.mac_key_file", tmp_path / "key")
    assert found.level is Level.OK
    assert "2 keys" in found.seen
    assert "abab" not in found.seen


def test_a_file_that_is_absent_or_endless_or_holds_no_key_is_broken(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("no key")
    (tmp_path / "long").write_text("ab" * 9999)
    for name in ("absent", "words", "long"):
        found = judge("core kv.mac_key_file", tmp_path / name)
        assert (found.level, bool(found.do)) == (Level.BAD, True)
