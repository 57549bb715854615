"""What a laboratory could leave in the kernel beside processes: control groups and disks."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from firstlight.infra.lab.cgroups import find, limit_cpu, limit_memory, name_of
from firstlight.infra.lab.disks import fill, free, new_disk
from firstlight.infra.lab.lab import start_lab
from firstlight.infra.lab.running import lab_state
from firstlight.shared.errors import ConfigError

BUSY = [sys.executable, "-c", "while True: pass"]
GREEDY = """
import sys
kept = []
print(flush=True)
sys.stdin.readline()
for _ in range(64):
    kept.append(bytearray(b"x" * (1 << 20)))
"""


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_busy_process_gets_a_tenth_of_a_cpu_until_it_is_let_go() -> None:
    with subprocess.Popen(BUSY) as busy:
        try:
            group = limit_cpu("firstlight-test-busy", busy.pid, 0.1)
            used_s, since = cpu_s(busy.pid), monotonic()
            sleep(1.0)
            share = (cpu_s(busy.pid) - used_s) / (monotonic() - since)
            group.close()
            group.close()
            assert not group.path.exists()
            assert 0.02 <= share <= 0.16
            assert busy.poll() is None
        finally:
            busy.kill()


def test_a_process_that_takes_too_much_memory_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", GREEDY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as greedy:
        assert greedy.stdout is not None
        assert greedy.stdin is not None
        greedy.stdout.readline()
        group = limit_memory("firstlight-test-greedy", greedy.pid, 8 << 20)
        greedy.stdin.write(b"\n")
        greedy.stdin.flush()
        assert greedy.wait(20) == -signal.SIGKILL
        group.close()
        assert not group.path.exists()


def test_groups_of_a_run_whose_launcher_was_killed_are_removed_by_the_next(tmp_path: Path) -> None:
    folder = lab_state(tmp_path) / "runs" / "0badcafe"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    stale = find("cpu").root / name_of(folder.name, "core")
    stale.mkdir()
    file = tmp_path / "coreless.yaml"
    file.write_text("regions: {eu: {}}\nnodes: {user: {role: client, region: eu}}\n")
    with pytest.raises(ConfigError, match="none has the role"):
        start_lab(file, tmp_path)
    assert not stale.exists()


def test_a_disk_is_seen_by_who_is_inside_and_full_when_it_is_filled(tmp_path: Path) -> None:
    disk = new_disk(tmp_path / "disk", 2)
    try:
        (disk.path / "here").write_bytes(b"x")
        assert list((tmp_path / "disk").iterdir()) == []
        command = ["cat", str(tmp_path / "disk" / "here")]
        here = os.getcwd()
        with disk.inside():
            assert subprocess.run(command, capture_output=True, check=True).stdout == b"x"
        assert os.getcwd() == here
        assert subprocess.run(command, capture_output=True, check=False).returncode != 0
        assert 1 << 20 < fill(disk.path) <= 2 << 20
        with pytest.raises(OSError, match="No space left"):
            (disk.path / "more").write_bytes(bytes(8192))
        free(disk.path)
        (disk.path / "more").write_bytes(bytes(8192))
    finally:
        disk.close()


_LAUNCHER = """
import os, sys, time
from pathlib import Path
from firstlight.infra.lab.disks import new_disk
disk = new_disk(Path(sys.argv[1]), 2)
print(os.readlink(f"/proc/self/fd/{disk.fd}"), flush=True)
time.sleep(60)
"""


def holders(namespace: str) -> list[Path]:
    """Processes that are in a mount namespace, or hold it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            links = [entry / "ns" / "mnt", *(entry / "fd").iterdir()]
            found += [link for link in links if os.readlink(link) == namespace]
        except OSError:
            continue
    return found


def test_a_killed_launcher_leaves_no_disk(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LAUNCHER, str(tmp_path / "disk")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        namespace = launcher.stdout.readline().strip()
        assert holders(namespace)
        launcher.send_signal(signal.SIGKILL)
    assert holders(namespace) == []
    assert "firstlight" not in Path("/proc/self/mounts").read_text()
