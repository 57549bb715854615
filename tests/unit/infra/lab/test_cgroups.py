"""Where control groups are, of both versions, on folders that look like them."""

import os
from pathlib import Path

import pytest

from firstlight.infra.lab import cgroups
from firstlight.infra.lab.cgroups import Group, Hierarchy, find
from firstlight.shared.errors import ConfigError


def mounts(root: Path) -> str:
    return "\n".join(
        [
            "proc /proc proc rw 0 0",
            f"cgroup {root}/v1 cgroup rw,cpu,cpuacct 0 0",
            f"cgroup2 {root}/v2 cgroup2 rw 0 0",
        ]
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("v1", "v2"):
        (tmp_path / folder).mkdir()
    (tmp_path / "v2" / "cgroup.controllers").write_text("memory pids\n")
    return tmp_path


def test_each_controller_is_found_where_it_is(root: Path) -> None:
    assert find("cpu", mounts(root)) == Hierarchy("cpu", root / "v1", 1)
    assert find("memory", mounts(root)) == Hierarchy("memory", root / "v2", 2)


def test_a_machine_without_one_is_one_clear_error(root: Path) -> None:
    with pytest.raises(ConfigError, match="no control group of this machine limits memory"):
        find("memory", mounts(root).replace("cgroup2", "tmpfs"))


def test_who_may_make_no_group_is_told_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"v1: control groups cannot be made; it needs root"):
        find("cpu", mounts(root))


def test_of_two_limits_in_one_group_the_first_to_end_leaves_the_other(root: Path) -> None:
    path = root / "v2" / "firstlight-run-core"
    path.mkdir()
    for file, text in {"cpu.max": "2000 20000", "memory.max": "1000", "cgroup.procs": ""}.items():
        (path / file).write_text(text)
    Group(Hierarchy("cpu", root / "v2", 2), path, root / "v2").close()
    assert (path / "cpu.max").read_text().startswith("max")
    assert (path / "memory.max").read_text() == "1000"


def test_names_of_runs_are_kept_apart() -> None:
    assert cgroups.name_of("0badcafe", "core-us") == "firstlight-0badcafe-core-us"
