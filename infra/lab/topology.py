"""A laboratory's topology file: which nodes stand in which regions, and how far apart they are.

    seed: 1
    tcp: {slow_start_after_idle: false}  # optional: what the nodes' kernel does differently
    regions:
      eu: {place: west-europe}      # optional: places are as far apart as `presets` says
      us: {place: east-us}
    nodes:
      lb: {role: lb, region: us}
      edge-eu: {role: edge, region: eu}
      core-us: {role: core, region: us, settings: {drain_s: 5}}
      user: {role: client, region: eu}
    inside: {rtt_ms: 0.5}           # between two nodes of one region
    links:
      - {between: [eu, us], rtt_ms: 140, jitter_ms: 2}
      - {between: [user, edge-eu], rtt_ms: 10}
      - {from: core-us, to: edge-eu, mbit_per_s: 20, loss: 0.01}

`rtt_ms` is there and back, half of it each way; `delay_ms` is one way, and what stands beside it
(jitter, loss, speed, reordering) is each way's own too. A rule says only what it changes: rules
between regions come before those with one node, and those before rules between two nodes; among
equals the later one wins. Every pair of nodes has links of its own, so a limit is not shared.
Sans-IO: `topology_file` reads it.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import combinations, permutations
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from firstlight.infra.lab.links import QUEUE_BYTES_MAX, Shape
from firstlight.infra.lab.presets import PLACES, round_trip_ms
from firstlight.shared.errors import ConfigError

NODES_MAX = 100
DELAY_MS_MAX = 10_000.0
REORDER_MS = 10.0
OPERATOR = "operator"
"""The laboratory's own place, from where it looks at its nodes, at no distance from any."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

Ms = Annotated[float, Field(ge=0, le=DELAY_MS_MAX)]
Share = Annotated[float, Field(ge=0, le=1)]
NodeRole = Literal["lb", "edge", "core", "valkey", "client"]
_MODEL = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Region(BaseModel):
    """A region."""

    model_config = _MODEL

    place: Literal[PLACES] | None = None  # type: ignore[valid-type]
    """Where it stands in the world, if presets shall say how far it is from others."""


class Node(BaseModel):
    """A node, or a client."""

    model_config = _MODEL

    role: NodeRole
    region: str
    settings: dict[str, Any] = {}
    """Over what the laboratory writes into the node's own configuration."""
    disk_mb: Annotated[float, Field(ge=1, le=1 << 20)] | None = None
    """Of a core: a disk of its own, in memory, for the disk tier of its KV; null: none."""


class Tcp(BaseModel):
    """How TCP behaves at every node. What is null is left as this machine has it."""

    model_config = _MODEL

    congestion_control: Annotated[str, Field(pattern="^[a-z0-9_-]{1,15}$")] | None = None
    """`reno` is everywhere; others where this machine allows them to all."""
    slow_start_after_idle: bool | None = None
    """Whether a connection that sends little begins slowly again; Linux says yes."""

    @property
    def sysctls(self) -> dict[str, str]:
        """Names below `net/ipv4`, and values."""
        idle = self.slow_start_after_idle
        return {
            name: value
            for name, value in (
                ("tcp_congestion_control", self.congestion_control),
                ("tcp_slow_start_after_idle", None if idle is None else str(int(idle))),
            )
            if value is not None
        }


class LinkRule(BaseModel):
    """What one entry says of links. Fields that do not stand in it are left as they are."""

    model_config = _MODEL

    between: tuple[str, str] | None = None
    """Regions or nodes, both ways."""
    source: str | None = Field(None, alias="from")
    """A region or node; with `to`, one way only."""
    target: str | None = Field(None, alias="to")
    rtt_ms: Ms | None = None
    """There and back; half of it each way."""
    delay_ms: Ms | None = None
    """One way."""
    jitter_ms: Ms = 0.0
    """One way: evenly within delay ± jitter."""
    loss: Share = 0.0
    """One way, of packets."""
    mbit_per_s: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """One way; null: no limit."""
    queue_bytes_max: Annotated[int, Field(ge=1500, le=1 << 30)] = QUEUE_BYTES_MAX
    """What may wait before a line with a limit."""
    reorder: Share = 0.0
    """Share of packets that are late, so that others pass them."""
    reorder_ms: Ms = REORDER_MS
    """How late at most."""

    @model_validator(mode="after")
    def _one_delay(self) -> Self:
        if self.rtt_ms is not None and self.delay_ms is not None:
            raise ValueError("rtt_ms and delay_ms both say how far it is, expected one of them")
        return self

    def said(self) -> dict[str, Any]:
        """The link's properties that stand in it; the delay is one way."""
        said = self.model_dump(include=self.model_fields_set - {"between", "source", "target"})
        rtt_ms = said.pop("rtt_ms", None)
        if rtt_ms is not None:
            said["delay_ms"] = rtt_ms / 2
        return {name: value for name, value in said.items() if (name, value) != ("delay_ms", None)}


class Topology(BaseModel):
    """A whole file."""

    model_config = _MODEL

    seed: int = 1
    """Of all lots: loss, jitter, reordering."""
    tcp: Tcp = Tcp()
    regions: Annotated[dict[str, Region], Field(min_length=1)]
    nodes: Annotated[dict[str, Node], Field(min_length=1, max_length=NODES_MAX)]
    inside: LinkRule = LinkRule.model_validate({"rtt_ms": 0.5})
    """Between two nodes of one region."""
    links: tuple[LinkRule, ...] = ()

    def of_role(self, role: str) -> list[str]:
        """Names of the nodes of a role, as they stand in the file."""
        return [name for name, node in self.nodes.items() if node.role == role]

    def names_of(self, name: str) -> list[str]:
        """The nodes that a region's or a node's name stands for. Raises `ConfigError`."""
        if name in self.nodes:
            return [name]
        if name in self.regions:
            return [node for node, told in self.nodes.items() if told.region == name]
        raise ConfigError(f"{name!r}, expected a region or a node: {', '.join(self._known())}")

    def _known(self) -> list[str]:
        return [*self.regions, *self.nodes]

    def shape(self, source: str, target: str) -> Shape:
        """How the link from one to another is. Raises `ConfigError` if nothing says how far."""
        if OPERATOR in (source, target):
            return Shape(0.0)
        said = dict(self._far[self.nodes[source].region, self.nodes[target].region])
        for rule, changes in self._by_level:
            if self._covers(rule, source, target):
                said |= changes
        if "delay_ms" not in said:
            one, other = self.nodes[source].region, self.nodes[target].region
            raise ConfigError(
                f"links: nothing says how far it is from {source} to {target}: add an entry such "
                f"as {{between: [{one}, {other}], rtt_ms: 80}}"
            )
        return shape_of(said, f"from {source} to {target}")

    @cached_property
    def _by_level(self) -> list[tuple[LinkRule, dict[str, Any]]]:
        """Rules with what they say, those between regions first; read for every pair of nodes."""
        return [(rule, rule.said()) for rule in sorted(self.links, key=self._level)]

    @cached_property
    def _far(self) -> dict[tuple[str, str], dict[str, Any]]:
        """How far regions are apart before any rule."""
        regions = self.regions
        return {(one, other): self._apart(one, other) for one in regions for other in regions}

    def _apart(self, one: str, other: str) -> dict[str, Any]:
        if one == other:
            return self.inside.said()
        here, there = self.regions[one].place, self.regions[other].place
        rtt_ms = round_trip_ms(here, there) if here and there else None
        return {} if rtt_ms is None else {"delay_ms": rtt_ms / 2}

    def _ends(self, rule: LinkRule) -> tuple[str, str]:
        source, target = rule.between or (rule.source, rule.target)
        assert source is not None
        assert target is not None
        return source, target

    def _level(self, rule: LinkRule) -> int:
        return sum(end in self.nodes for end in self._ends(rule))

    def _covers(self, rule: LinkRule, source: str, target: str) -> bool:
        one, other = self._ends(rule)
        there = self._is(source, one) and self._is(target, other)
        back = self._is(source, other) and self._is(target, one)
        return there or (back and rule.between is not None)

    def _is(self, node: str, name: str) -> bool:
        return name in (node, self.nodes[node].region)

    def problems(self) -> list[str]:
        """What one field alone does not show, each with the path of the wrong field."""
        found = list(self._problems_of_names())
        for index, rule in enumerate(self.links):
            found += self.problems_of(rule, f"links.{index}")
        return found or list(self._problems_of_pairs())

    def _problems_of_pairs(self) -> Iterator[str]:
        for one, other in combinations(self.nodes, 2):
            for source, target in permutations((one, other)):
                try:
                    self.shape(source, target)
                except ConfigError as error:
                    yield error.message
                    return

    def _problems_of_names(self) -> Iterator[str]:
        for name in self._known():
            where = "regions" if name in self.regions else "nodes"
            if not _NAME.fullmatch(name) or name == OPERATOR:
                yield f"{where}.{name}: no name: letters, digits, . _ - expected, not {OPERATOR!r}"
        for name, node in self.nodes.items():
            if name in self.regions:
                yield f"nodes.{name}: a region has this name too"
            if node.disk_mb is not None and node.role != "core":
                yield f"nodes.{name}.disk_mb: only cores keep something on a disk, not {node.role}"
            if node.region not in self.regions:
                known = ", ".join(self.regions)
                yield f"nodes.{name}.region: {node.region!r}, expected one of {known}"
        if self.inside.between or self.inside.source or self.inside.target:
            yield "inside: it names ends, but stands for every pair of nodes in a region"

    def problems_of(self, rule: LinkRule, where: str) -> Iterator[str]:
        """What is wrong with the ends of one rule, which stands at `where`."""
        one_way = {"from": rule.source, "to": rule.target}
        if rule.between is None and None in one_way.values():
            missing = next(name for name, value in one_way.items() if value is None)
            yield f"{where}.{missing}: missing; a rule has both from and to, or between"
        elif rule.between and (rule.source or rule.target):
            yield f"{where}: between stands beside from or to, expected one of them"
        ends = {"between": rule.between or (), **{k: (v,) if v else () for k, v in one_way.items()}}
        for field, names in ends.items():
            for name in names:
                if name not in self.regions and name not in self.nodes:
                    known = ", ".join(self._known())
                    yield f"{where}.{field}: {name!r}, expected a region or node of {known}"


def link_properties(said: object) -> LinkRule:
    """What an operator says of links that he names elsewhere. Raises `ConfigError`."""
    if not isinstance(said, Mapping) or not said:
        raise ConfigError(f"link: {said!r:.40}, expected properties such as {{'loss': 0.05}}")
    try:
        rule = LinkRule.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in ("link", *first["loc"]))
        raise ConfigError(f"{where}: {first['input']!r:.40}: {first['msg']}") from None
    if rule.between or rule.source or rule.target:
        raise ConfigError(f"link: {dict(said)!r:.40}: it names ends, which are said beside it")
    return rule


def shape_of(said: Mapping[str, Any], whose: str) -> Shape:
    """What rules said, each by itself right, as one shape. Raises `ConfigError`."""
    delay_ms, jitter_ms = said["delay_ms"], said.get("jitter_ms", 0.0)
    if jitter_ms > delay_ms:
        raise ConfigError(
            f"links: {whose} the jitter is {jitter_ms:g} ms and the delay only "
            f"{delay_ms:g} ms one way, expected at least as much"
        )
    mbit_per_s = said.get("mbit_per_s")
    return Shape(
        delay_s=delay_ms / 1e3,
        jitter_s=jitter_ms / 1e3,
        loss=said.get("loss", 0.0),
        bits_per_s=None if mbit_per_s is None else mbit_per_s * 1e6,
        queue_bytes_max=said.get("queue_bytes_max", QUEUE_BYTES_MAX),
        reorder=said.get("reorder", 0.0),
        reorder_s=said.get("reorder_ms", REORDER_MS) / 1e3,
    )


def changed_shape(rule: LinkRule, over: Shape) -> Shape:
    """A shape with some properties changed, as the rule says. Raises `ConfigError`."""
    before = {
        "delay_ms": over.delay_s * 1e3,
        "jitter_ms": over.jitter_s * 1e3,
        "loss": over.loss,
        "mbit_per_s": None if over.bits_per_s is None else over.bits_per_s / 1e6,
        "queue_bytes_max": over.queue_bytes_max,
        "reorder": over.reorder,
        "reorder_ms": over.reorder_s * 1e3,
    }
    return shape_of(before | rule.said(), "changed so,")
