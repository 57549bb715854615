"""Reads a laboratory's topology file, and refuses what is wrong with it by the field's path."""

from pathlib import Path

from firstlight.infra.lab.topology import Topology
from firstlight.shared.config import load_document
from firstlight.shared.errors import ConfigError

EXAMPLE = Path(__file__).parent / "two_regions.yaml"
"""The topology that comes with the package: a far user of a core in another region."""


def load_topology(path: Path) -> Topology:
    """Read and check a file. Raises `ConfigError`, one line an error."""
    topology = load_document(Topology, path)
    problems = topology.problems()
    if problems:
        raise ConfigError("\n".join(f"{problem} ({path})" for problem in problems))
    return topology
