"""Key files of an edge."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firstlight.edge_node.keys import salt_key
from firstlight.shared.errors import ConfigError


def test_a_key_is_made_once_for_all_who_start_at_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "salt.key"
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: salt_key(None, default=path), range(16)))
    assert len(keys) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["salt.key"]


def test_a_named_file_must_hold_a_whole_key(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("abcd\n")
    with pytest.raises(ConfigError, match="2 bytes, expected 32"):
        salt_key(short, default=tmp_path / "other")


def test_a_named_file_that_is_absent_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        salt_key(tmp_path / "absent", default=tmp_path / "other")
    assert list(tmp_path.iterdir()) == []
