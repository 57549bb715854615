"""Key files."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firstlight.shared.errors import ConfigError
from firstlight.shared.keys import read_keys


def test_a_key_is_made_once_for_all_who_start_at_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "salt.key"
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: read_keys("keys.a", None, default=path), range(16)))
    assert len(keys) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["salt.key"]


def test_a_named_file_must_hold_a_whole_key(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("abcd\n")
    with pytest.raises(ConfigError, match=r"keys\.a: .*short: 2 bytes, expected 32"):
        read_keys("keys.a", short, default=tmp_path / "other")


def test_a_named_file_that_is_absent_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_keys("keys.a", tmp_path / "absent", default=tmp_path / "other")
    assert list(tmp_path.iterdir()) == []


def test_a_file_may_hold_the_key_before_the_current_one(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{'ab' * 32}\n{'cd' * 32}\n")
    assert read_keys("keys.a", path, default=path) == (b"\xab" * 32, b"\xcd" * 32)
    path.write_text("ab" * 32 + "\n" + "cd" * 32 + "\n" + "ef" * 32)
    with pytest.raises(ConfigError, match="3 keys, expected 1 to 2"):
        read_keys("keys.a", path, default=path)
    path.write_text("")
    with pytest.raises(ConfigError, match="0 keys"):
        read_keys("keys.a", path, default=path)
