"""All links of a laboratory by their ends, and what an operator may do to them while they run.

Sans-IO. A path is made when its first packet comes: with two hundred nodes most pairs never speak.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from firstlight.infra.lab.links import Link
from firstlight.infra.lab.topology import Topology, changed_shape, link_properties
from firstlight.shared.errors import ConfigError

EVERYWHERE = "*"


@dataclass(slots=True)
class Path:
    """One way between two nodes, with what went over it."""

    source: str
    target: str
    link: Link
    packets: int = 0
    bytes: int = 0
    drops: Counter[str] = field(default_factory=Counter)
    changed: bool = False
    """Whether it is no longer as the topology says."""

    def told(self) -> dict[str, Any]:
        """For people and programs."""
        shape = self.link.shape
        return {
            "from": self.source,
            "to": self.target,
            "delay_ms": round(shape.delay_s * 1e3, 3),
            "jitter_ms": round(shape.jitter_s * 1e3, 3),
            "loss": shape.loss,
            "mbit_per_s": None if shape.bits_per_s is None else shape.bits_per_s / 1e6,
            "reorder": shape.reorder,
            "cut": self.link.cut,
            "changed": self.changed,
            "packets": self.packets,
            "bytes": self.bytes,
            "drops": dict(self.drops),
        }


class Paths:
    """The table. Ends are node names; commands may name regions, or `*` for everyone."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._paths: dict[tuple[str, str], Path] = {}

    def path(self, source: str, target: str) -> Path:
        """The path from one node to another, with lots of its own."""
        known = self._paths.get((source, target))
        if known is None:
            seed = f"{self._topology.seed} {source} {target}"
            link = Link(self._topology.shape(source, target), seed)
            known = self._paths[source, target] = Path(source, target, link)
        return known

    def __iter__(self) -> Iterator[Path]:
        """Those that were used or changed."""
        return iter(self._paths.values())

    def command(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Do what an operator says. Raises `ConfigError` for what cannot be done; then nothing is.

        `{"do": "set", "from": "eu", "to": "core-us", "link": {"loss": 0.05}}` changes properties,
        `partition` cuts, `heal` mends cuts, `reset` brings back what the topology says. They go
        both ways unless `"one_way": true`; without `from` or `to` that end is everyone.
        """
        do = command.get("do")
        known = {"do", "from", "to", "one_way", *(("link",) if do == "set" else ())}
        if unknown := set(command) - known:
            raise ConfigError(f"{min(unknown)}: unknown key, expected {', '.join(sorted(known))}")
        if do not in ("set", "partition", "heal", "reset"):
            raise ConfigError(f"do: {do!r}, expected set, partition, heal, reset or stats")
        paths = self._meant(command)
        if do == "set":
            self._set(paths, command.get("link"))
        for path in paths:
            if do in ("heal", "partition"):
                path.link.cut = do == "partition"
            elif do == "reset":
                path.link.cut = path.changed = False
                path.link.shape = self._topology.shape(path.source, path.target)
        return {"ok": True, "paths": len(paths)}

    def _set(self, paths: list[Path], said: object) -> None:
        rule = link_properties(said)
        shapes = [changed_shape(rule, path.link.shape) for path in paths]
        for path, shape in zip(paths, shapes, strict=True):
            path.link.shape, path.changed = shape, True

    def _meant(self, command: Mapping[str, Any]) -> list[Path]:
        one, other = (self._ends(command, end) for end in ("from", "to"))
        pairs = {(a, b) for a in one for b in other if a != b}
        if not command.get("one_way", False):
            pairs |= {(b, a) for a, b in pairs}
        if not pairs:
            raise ConfigError("from and to name one node, and no link")
        return [self.path(*pair) for pair in sorted(pairs)]

    def _ends(self, command: Mapping[str, Any], end: str) -> list[str]:
        name = command.get(end, EVERYWHERE)
        if name == EVERYWHERE:
            return list(self._topology.nodes)
        try:
            return self._topology.names_of(str(name))
        except ConfigError as error:
            raise ConfigError(f"{end}: {error.message}") from None
