"""What a benchmark prints before its figures: the command, the machine, the versions."""

import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median, quantiles

from firstlight.shared.clock import monotonic_s

_SECRETS = ("--key", "--api-key", "--against-key")
_PACKAGES = ("torch", "numpy", "grpcio", "aioquic", "granian")


def heading() -> str:
    """Two lines: how this was started, and on what."""
    command = shlex.join([*_program(), *_open_arguments(sys.argv[1:])])
    versions = " ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    machine = f"{_cpu()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"
    return f"{command}\n{machine}, Python {platform.python_version()}, {versions}"


def loop_ms() -> float:
    """How fast Python is here: a million additions, best of five tries."""
    best_s = float("inf")
    for _ in range(5):
        begun_s, total = monotonic_s(), 0
        for number in range(1_000_000):
            total += number
        best_s = min(best_s, monotonic_s() - begun_s)
    return best_s * 1e3


def cold_factor() -> float:
    """How much longer a small piece of work takes after 20 ms of something that touches no memory.

    About 1 where a core and its caches are ours alone; far above where neighbours take them away,
    and then every short piece of work between two waits is paid for in cache misses.
    """
    hot_s, cold_s = _piece_s(0.0), _piece_s(0.02)
    return cold_s / hot_s


def _piece_s(pause_s: float) -> float:
    """Median time of one piece of work, each after `pause_s` of spinning."""
    value = [{"role": "user", "content": "one piece of work " * 4}] * 2
    times = []
    for _ in range(25):
        json.dumps(value, default=str)
        end_s = monotonic_s() + pause_s
        while monotonic_s() < end_s:
            pass
        begun_s = monotonic_s()
        json.dumps(value, default=str)
        times.append(monotonic_s() - begun_s)
    return median(times)


def percentile(values: Sequence[float], percent: int) -> float:
    """The `percent`-th percentile, interpolated; of one value, that value."""
    if len(values) < 2:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _program() -> list[str]:
    """What starts this again, without its arguments."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = spec.name if spec is not None else sys.argv[0]
    ours = name == "firstlight.__main__" or Path(name).name == "firstlight"
    return ["firstlight"] if ours else ["python", "-m", name]


def _open_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments without keys: what is printed gets around."""
    shown = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        name, equals, _ = argument.partition("=")
        hidden = name + equals + "…" if equals and name in _SECRETS else argument
        shown.append("…" if before in _SECRETS else hidden)
    return shown


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
