"""The edges of the mesh that runs on this machine, as a client of it."""

from pathlib import Path

from firstlight.infra.client.directory import keys_in
from firstlight.infra.client.nearest import NearestEdges
from firstlight.infra.client.race import Spoken
from firstlight.infra.running import RunningMesh
from firstlight.shared.errors import ConfigError

DIRECTORY_KEYS = "directory.pub"
"""Beside the CA's certificate, where nodes sign their lists of edges."""


def edges_of(
    mesh: RunningMesh, *, ca_file: Path | None = None, only: Spoken | None = None
) -> NearestEdges:
    """Its edges, and its load balancer to ask for more; over `only` this HTTP version, if any.

    Raises `ConfigError`.
    """
    seeds = [*(edge.url for edge in mesh.edges), mesh.lb]
    keys = _directory_keys(Path(mesh.ca_file).with_name(DIRECTORY_KEYS))
    trusted = ca_file or Path(mesh.ca_file)
    return NearestEdges(seeds, ca_file=trusted, directory_keys=keys, only=only)


def _directory_keys(path: Path) -> list[str]:
    try:
        return keys_in(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read as public keys of a directory: {error}"
        ) from error
