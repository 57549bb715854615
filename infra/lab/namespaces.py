"""Network namespaces that nobody has to clean up.

A namespace here has no name in the file system: it lives as long as the descriptor that holds it,
or a process in it. So when a laboratory ends, however it ends (SIGKILL included), the kernel takes
the namespaces and the devices in them away with its last process.

Being in a namespace is a property of a thread, and children and sockets take it from the thread
that makes them: whoever starts a process inside needs no other program for it.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from firstlight.infra.lab.tun import CLONE, open_tun
from firstlight.shared.errors import ConfigError

DEVICE = "wan0"
QUEUE_PACKETS = 5_000
"""What the kernel keeps of a burst until the router has read it."""
_CLONE_NEWNET = 0x40000000
_MINE = "/proc/thread-self/ns/net"
_IPV4 = Path("/proc/sys/net/ipv4")
"""Of the namespace of whoever opens it."""
_IPV6 = Path("/proc/net/if_inet6")
_IP_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Namespace:
    """A network namespace, held by an open descriptor; `close` lets go of it."""

    fd: int

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Run the block, on this thread, in the namespace. No `await` in it that others run in."""
        home = os.open(_MINE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(self.fd)
            try:
                yield
            finally:
                _enter(home)
        finally:
            os.close(home)

    def close(self) -> None:
        """Let go; it is gone when the last process in it has ended."""
        os.close(self.fd)


def new_namespace() -> Namespace:
    """A namespace with nothing in it but a loopback device that is up. Raises `ConfigError`."""
    home = os.open(_MINE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc().unshare(_CLONE_NEWNET), "a network namespace cannot be made")
        try:
            namespace = Namespace(os.open(_MINE, os.O_RDONLY | os.O_CLOEXEC))
        finally:
            _enter(home)
    finally:
        os.close(home)
    _ip(namespace, ["link set lo up"])
    return namespace


def borrow(pid: int, fd: int) -> Namespace:
    """The namespace that another process holds by its descriptor `fd`. Raises `ConfigError`."""
    try:
        return Namespace(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise ConfigError(f"a namespace of process {pid}: {error.strerror}") from error


def attach(namespace: Namespace, addresses: Sequence[str]) -> int:
    """Give it a device with these addresses (`10.77.0.1/16`); returns the device's descriptor."""
    with namespace.inside():
        try:
            fd = open_tun(DEVICE)
        except OSError as error:
            raise ConfigError(f"{CLONE}: {error.strerror}") from error
    lines = [f"link set {DEVICE} txqueuelen {QUEUE_PACKETS}"]
    if _IPV6.exists():
        lines.append(f"link set {DEVICE} addrgenmode none")
    for address in addresses:
        plain = ":" not in address
        if plain or _IPV6.exists():
            lines.append(f"address add {address} dev {DEVICE}{'' if plain else ' nodad'}")
    try:
        _ip(namespace, [*lines, f"link set {DEVICE} up"])
    except BaseException:
        os.close(fd)
        raise
    return fd


def set_ipv4(namespace: Namespace, values: Mapping[str, str]) -> None:
    """Set what lies below `net/ipv4` for this namespace alone. Raises `ConfigError`."""
    with namespace.inside():
        for name, value in values.items():
            try:
                (_IPV4 / name).write_text(value, "ascii")
            except OSError as error:
                raise ConfigError(f"{name} cannot be {value!r} here: {error.strerror}") from error


def missing() -> str:
    """Why namespaces and devices cannot be made here; empty if they can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "it needs root"
    if not os.access(CLONE, os.R_OK | os.W_OK):
        return f"{CLONE} is not there, or not ours to open"
    if shutil.which("ip") is None:
        return "the program `ip` is missing (package iproute2)"
    return ""


def _ip(namespace: Namespace, lines: Sequence[str]) -> None:
    with namespace.inside():
        try:
            done = subprocess.run(
                ["ip", "-batch", "-"],
                input="\n".join(lines),
                capture_output=True,
                text=True,
                timeout=_IP_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"ip: {error}") from error
    if done.returncode:
        raise ConfigError(f"ip: {' '.join((done.stderr or done.stdout).split())}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _enter(fd: int) -> None:
    _check(_libc().setns(fd, _CLONE_NEWNET), "a network namespace cannot be entered")


def _check(result: int, problem: str) -> None:
    if result != 0:
        raise ConfigError(f"{problem}: {os.strerror(ctypes.get_errno())}")
