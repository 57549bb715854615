"""Reads a scenario file, and refuses what is wrong with it by the field's path.

Those that come with the package are known by their name alone.
"""

from pathlib import Path
from typing import Any

from firstlight.infra.lab.topology_file import load_topology
from firstlight.infra.scenario.scenario import Scenario, expanded
from firstlight.shared.config import parse_document, read_document
from firstlight.shared.errors import ConfigError

PACKAGED = Path(__file__).parent.parent / "scenarios"


def find_scenario(name: str) -> Path:
    """The file that is meant: a path, or the name of one that comes with the package.

    Raises `ConfigError` if there is neither.
    """
    path = Path(name)
    packaged = PACKAGED / f"{name}.yaml"
    if path.is_file():
        return path
    if packaged.is_file():
        return packaged
    known = ", ".join(sorted(file.stem for file in PACKAGED.glob("*.yaml")))
    raise ConfigError(f"{name}: no such file, and no scenario has this name: {known}")


def load_scenario(path: Path) -> Scenario:
    """Read and check a file. Raises `ConfigError`, one line an error."""
    document = read_document(path)
    try:
        document = {**document, "phases": expanded(document.get("phases"))}
    except ValueError as error:
        raise ConfigError(f"phases: {error} ({path})") from None
    topology = document.get("topology")
    if isinstance(topology, str):
        document["topology"] = _topology(path, topology)
    scenario = parse_document(Scenario, document, path)
    if problems := scenario.problems():
        raise ConfigError("\n".join(f"{problem} ({path})" for problem in problems))
    return scenario


def _topology(path: Path, name: str) -> dict[str, Any]:
    return load_topology(path.parent / name).model_dump(exclude_unset=True, by_alias=True)
