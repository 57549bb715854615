"""Limits of the machine, judged from values and from files that stand in for /proc."""

import resource
from dataclasses import dataclass
from pathlib import Path

import pytest

from firstlight.core_node.config import CoreSettings
from firstlight.edge_node.config import EdgeSettings
from firstlight.global_lb.config import LbSettings
from firstlight.infra.checks import machine
from firstlight.infra.checks.finding import Level
from firstlight.infra.checks.subject import Subject
from firstlight.shared.tls import TlsConfig
from firstlight.shared.types import Role


def edge(state: Path) -> Subject:
    return Subject(((Role.EDGE, EdgeSettings()),), state)


@pytest.mark.parametrize(
    ("soft", "level"),
    [(255, Level.BAD), (256, Level.WARN), (4095, Level.WARN), (4096, Level.OK)],
)
def test_open_files_are_judged_by_their_limit(soft: int, level: Level) -> None:
    assert machine.judge_files(soft, 1 << 20).level is level


def test_no_limit_of_open_files_is_fine() -> None:
    assert machine.judge_files(resource.RLIM_INFINITY, resource.RLIM_INFINITY).level is Level.OK


def test_a_hard_limit_that_is_too_low_is_to_be_raised_first() -> None:
    assert machine.judge_files(1024, 1 << 20).do.startswith("ulimit -n 4096")
    assert machine.judge_files(1024, 2048).do.startswith("raise the hard limit (now 2048)")


def test_udp_buffers_are_read_from_proc(tmp_path: Path) -> None:
    folder = tmp_path / "sys/net/core"
    folder.mkdir(parents=True)
    (folder / "rmem_max").write_text("212992\n")
    (folder / "wmem_max").write_text("8388608\n")
    receive, send = machine.look_udp(edge(tmp_path), tmp_path)
    assert (receive.level, send.level) == (Level.WARN, Level.OK)
    assert receive.do == "sudo sysctl -w net.core.rmem_max=4194304"


def test_without_proc_udp_buffers_are_not_looked_at(tmp_path: Path) -> None:
    found = machine.look_udp(edge(tmp_path), tmp_path)
    assert [one.level for one in found] == [Level.WARN, Level.WARN]
    assert all(one.seen.startswith("not looked at, because") for one in found)


def kernel(folder: Path, control: str, after_idle: str) -> Path:
    ipv4 = folder / "sys/net/ipv4"
    ipv4.mkdir(parents=True)
    (ipv4 / "tcp_congestion_control").write_text(control + "\n")
    (ipv4 / "tcp_slow_start_after_idle").write_text(after_idle + "\n")
    return folder


@pytest.mark.parametrize(
    ("control", "after_idle", "level"),
    [("cubic", "1", Level.WARN), ("cubic", "0", Level.OK), ("bbr", "1", Level.OK)],
)
def test_a_window_that_falls_in_quiet_times_is_told(
    tmp_path: Path, control: str, after_idle: str, level: Level
) -> None:
    (found,) = machine.look_tcp(edge(tmp_path), kernel(tmp_path, control, after_idle))
    assert found.level is level
    assert ("tcp_slow_start_after_idle=0" in found.do) == (level is Level.WARN)


def test_windows_are_no_matter_for_a_mesh_on_this_machine(tmp_path: Path) -> None:
    mesh = Subject(((Role.EDGE, EdgeSettings()),), tmp_path, meant=False)
    assert machine.look_tcp(mesh, kernel(tmp_path, "cubic", "1")) == []


def test_without_proc_windows_are_not_looked_at(tmp_path: Path) -> None:
    (found,) = machine.look_tcp(edge(tmp_path), tmp_path)
    assert found.seen.startswith("not looked at, because")


def test_a_core_has_no_need_of_udp(tmp_path: Path) -> None:
    core = Subject(((Role.CORE, CoreSettings()),), tmp_path)
    assert machine.look_udp(core, tmp_path) == []


@pytest.mark.parametrize(
    ("available", "level"),
    [(749, Level.BAD), (750, Level.WARN), (1499, Level.WARN), (1500, Level.OK), (None, Level.WARN)],
)
def test_memory_is_judged_by_what_the_nodes_want(available: int | None, level: Level) -> None:
    assert machine.judge_memory(available, 1500).level is level


def test_memory_is_what_the_kernel_or_the_container_leaves(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9999999 kB\nMemAvailable: 2097152 kB\n")
    assert machine.available_mib(tmp_path, tmp_path / "none") == 2048
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.available_mib(tmp_path, tmp_path) == 2048
    (tmp_path / "memory.max").write_text(f"{600 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{100 << 20}\n")
    assert machine.available_mib(tmp_path, tmp_path) == 500


@pytest.mark.parametrize(
    ("free_mib", "writable", "level"),
    [
        (63, True, Level.BAD),
        (64, True, Level.WARN),
        (1023, True, Level.WARN),
        (1024, True, Level.OK),
        (9999, False, Level.BAD),
    ],
)
def test_a_disk_is_judged_by_room_and_right(free_mib: int, writable: bool, level: Level) -> None:
    found = machine.judge_disk("state", Path("/x"), free_mib, 1024, writable=writable)
    assert found.level is level


def test_every_directory_of_the_settings_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = EdgeSettings(tls=TlsConfig(directory=tmp_path / "file" / "tls"))
    found = machine.look_disks(Subject(((Role.EDGE, settings),), tmp_path / "not" / "yet"))
    assert {one.name: one.level for one in found} == {
        "state directory": Level.OK,
        "edge tls.directory": Level.BAD,
    }


def test_a_directory_with_a_limit_wants_room_for_it() -> None:
    @dataclass(frozen=True)
    class Disk:
        directory: Path | None = Path("/kv")
        bytes_max: int = 3 << 30

    class WithDisk(LbSettings):
        disk: Disk = Disk()

    assert list(machine.directories(WithDisk())) == [("disk.directory", Path("/kv"), 3072)]


def test_what_lies_in_a_directory_already_counts_as_room(tmp_path: Path) -> None:
    (tmp_path / "block").write_bytes(bytes(3 << 20))
    assert machine._held_mib(tmp_path) == 3


def test_the_limits_of_this_machine_can_be_read(tmp_path: Path) -> None:
    assert [one.name for one in machine.look_files(edge(tmp_path))] == ["open files"]
    assert [one.name for one in machine.look_memory(edge(tmp_path))] == ["memory"]
