"""What `doctor` examines: this machine, and the settings of the nodes that shall run on it.

Settings are walked by the shape of their sections and not by name, so that a section which comes
later (another Redis, another directory) is looked at without a word here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

from firstlight.core_node.config import CoreSettings
from firstlight.edge_node.config import EdgeSettings
from firstlight.global_lb.config import LbSettings
from firstlight.shared.config import Settings, load_settings
from firstlight.shared.types import Role

NodeSettings = EdgeSettings | CoreSettings | LbSettings
_SETTINGS: dict[Role, type[NodeSettings]] = {
    Role.LB: LbSettings,
    Role.EDGE: EdgeSettings,
    Role.CORE: CoreSettings,
}


@dataclass(frozen=True, slots=True)
class Subject:
    """The nodes to examine, and where this user's state is."""

    nodes: tuple[tuple[Role, NodeSettings], ...]
    state: Path
    meant: bool = True
    """Whether somebody named a role; else the defaults of all roles stand for a local mesh."""

    @property
    def roles(self) -> frozenset[Role]:
        """The roles that shall run here."""
        return frozenset(role for role, _ in self.nodes)

    def tls_directory(self, settings: NodeSettings) -> Path:
        """Where the development authority of a node is, or will be."""
        return settings.tls.directory or self.state / "tls"


def settings_of(role: Role, config: Path | None) -> NodeSettings:
    """The settings of one node as it would load them; raises `ConfigError`."""
    return load_settings(_SETTINGS[role], config)


def plain(role: Role) -> NodeSettings:
    """A role's defaults, with nothing read: what remains when its settings cannot be loaded."""
    return _SETTINGS[role]()


def sections(settings: Settings) -> Iterator[tuple[str, object]]:
    """Dotted name and value of everything in the settings, sections before what is in them."""
    for name in type(settings).model_fields:
        yield from _below(name, getattr(settings, name))


def _below(name: str, value: object) -> Iterator[tuple[str, object]]:
    yield name, value
    if is_dataclass(value):
        for field in fields(value):
            yield from _below(f"{name}.{field.name}", getattr(value, field.name))
