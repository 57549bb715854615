"""`mesh.json`: how `firstlight chat` and `explain` find the mesh that runs on this machine.

`up` and `demo` write it once their mesh is ready and remove it when they end. A launcher that was
killed leaves the file behind, so a reader checks that the launcher still lives.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from firstlight.shared.config import state_dir
from firstlight.shared.errors import ConfigError

FILE_NAME = "mesh.json"
_THIS_MACHINE = {"127.0.0.1", "localhost"}


@dataclass(frozen=True, slots=True)
class EdgeAddress:
    """Where one edge answers."""

    node: str
    region: str
    url: str


@dataclass(frozen=True, slots=True)
class CoreAddress:
    """Where one core answers its operator."""

    node: str
    region: str
    admin: str
    """host:port on loopback; empty if it has no such listener."""


@dataclass(frozen=True, slots=True)
class RunningMesh:
    """What a client has to know of a local mesh."""

    pid: int
    """Of the launcher."""
    lb: str
    edges: tuple[EdgeAddress, ...]
    ca_file: str
    model: str
    """Name of the model that its cores serve."""
    cores: tuple[CoreAddress, ...] = ()
    """Empty in a file that an older version wrote."""
    key: str = ""
    """What its edges ask of clients; empty: nothing."""
    lb_admin: str = ""
    """host:port on loopback where the load balancer answers its operator; empty: nowhere."""

    def write(self, directory: Path) -> None:
        """Put this into `directory`, at once and whole."""
        path = directory / FILE_NAME
        partial = path.with_suffix(f".{self.pid}")
        partial.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        partial.replace(path)

    def remove(self, directory: Path) -> None:
        """Take the file away if it is still about this mesh."""
        try:
            if read_running(directory).pid == self.pid:
                (directory / FILE_NAME).unlink(missing_ok=True)
        except ConfigError:
            return


def read_running(directory: Path) -> RunningMesh:
    """The mesh that runs now. Raises `ConfigError` if none does."""
    path = directory / FILE_NAME
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        edges = tuple(EdgeAddress(**edge) for edge in fields.pop("edges"))
        cores = tuple(CoreAddress(**core) for core in fields.pop("cores", ()))
        mesh = RunningMesh(**fields, edges=edges, cores=cores)
        if not isinstance(mesh.pid, int) or not 0 < mesh.pid < 1 << 31:
            raise ValueError(f"pid is {mesh.pid!r:.40}")
        if not isinstance(mesh.lb, str) or not isinstance(mesh.ca_file, str):
            raise TypeError("lb and ca_file are not text")
    except FileNotFoundError as e:
        raise ConfigError("no mesh runs here: start one with `firstlight up`, or give --url") from e
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        raise ConfigError(f"{path} cannot be read as a running mesh: {e}") from e
    if not pid_alive(mesh.pid):
        raise ConfigError(
            f"the mesh in {path} is gone (process {mesh.pid} has ended): "
            "start one with `firstlight up`"
        )
    return mesh


def server_url(url: str) -> str:
    """The server of a base URL as other clients are given it."""
    return url.rstrip("/").removesuffix("/v1")


def known_ca(url: str) -> Path | None:
    """The CA of the mesh that runs here, if the URL is one of its edges, or its load balancer."""
    with suppress(ConfigError, ValueError):
        mesh = read_running(state_dir())
        asked = urlsplit(url)
        edges = [urlsplit(url) for url in (mesh.lb, *(edge.url for edge in mesh.edges))]
        here = asked.hostname in _THIS_MACHINE and asked.port in {edge.port for edge in edges}
        if here or asked.netloc in {edge.netloc for edge in edges}:
            return Path(mesh.ca_file)
    return None


def pid_alive(pid: int) -> bool:
    """Whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
