"""What can be done to a laboratory, as values: which faults there are, and whom each one strikes.

    {do: kill, node: core-us, for_s: 10}
    {do: partition, from: eu, to: us, one_way: true}
    {do: slow, node: core-us, share: 0.1}

`RULES` has all of them. Sans-IO; `faults` does them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from firstlight.infra.lab.topology import Topology, link_properties
from firstlight.shared.errors import ConfigError

Kind = Literal[
    "kill", "restart", "freeze", "slow", "memory", "hang", "refuse", "silent", "clock",
    "partition", "link", "region", "disk", "corrupt", "flush",
]  # fmt: skip
How = Literal["flip", "truncate", "swap"]
BLOCKS_MAX = 1_000_000
WITHIN_S = 30.0
ALL_ROLES = ("lb", "edge", "core", "valkey")
_ENDS = ("source", "target")


@dataclass(frozen=True, slots=True)
class Rule:
    """What one kind of fault needs."""

    roles: tuple[str, ...] = ()
    """That `node` may have; none: it is not about a node."""
    needs: tuple[str, ...] = ()
    """Fields that must stand in it, beside `node`."""
    may: tuple[str, ...] = ()
    """Fields that may."""
    lasts: bool = True
    """Whether there is something to take back."""


RULES: Mapping[str, Rule] = {
    "kill": Rule(ALL_ROLES),
    "restart": Rule(ALL_ROLES, lasts=False),
    "freeze": Rule(ALL_ROLES),
    "slow": Rule(ALL_ROLES, needs=("share",)),
    "memory": Rule(ALL_ROLES, needs=("more_mb",)),
    "hang": Rule(("core",)),
    "refuse": Rule(("core",)),
    "silent": Rule(("core",)),
    "clock": Rule(("lb", "edge", "core"), needs=("shift_s",)),
    "partition": Rule(needs=_ENDS, may=("one_way",)),
    "link": Rule(needs=(*_ENDS, "link"), may=("one_way",)),
    "region": Rule(needs=("region",)),
    "disk": Rule(("core",)),
    "corrupt": Rule(("core",), may=("how", "blocks"), lasts=False),
    "flush": Rule(("valkey",), lasts=False),
}
_PARAMETERS = {name for rule in RULES.values() for name in (*rule.needs, *rule.may)}


class Fault(BaseModel):
    """One fault, checked by itself; `check` says whether a topology has what it names."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    do: Kind
    node: str | None = None
    region: str | None = None
    """All processes of it: cut off first, so that nobody hears them end, then killed."""
    source: str | None = Field(None, alias="from")
    """A node, a region, or `*`."""
    target: str | None = Field(None, alias="to")
    one_way: bool = False
    """Not back as well."""
    link: dict[str, Any] | None = None
    """What packets meet: `{loss: 0.05, jitter_ms: 3}`, as in a topology."""
    share: Annotated[float, Field(ge=0.05, le=1)] | None = None
    """Of one CPU, of the whole process."""
    more_mb: Annotated[float, Field(gt=0, le=1 << 20)] | None = None
    """Memory that it may take from now on; beyond it the kernel kills it."""
    shift_s: float | None = None
    """How much its wall clock is ahead; below 0: behind."""
    how: How = "flip"
    """A bit of a block, its end, or two blocks in each other's place."""
    blocks: Annotated[int, Field(ge=1, le=BLOCKS_MAX)] = 1
    """How many, picked by lot; all, if there are fewer."""
    for_s: Annotated[float, Field(gt=0)] | None = None
    """When to take it back; null: at the end of the run. Whoever runs the scenario keeps time."""
    within_s: Annotated[float, Field(gt=0)] = WITHIN_S
    """How soon after it something must succeed again, for the judge."""

    @model_validator(mode="after")
    def _fields_of_its_kind(self) -> Self:
        rule, said = RULES[self.do], self.model_fields_set
        needs = (("node",) if rule.roles else ()) + rule.needs
        for name in needs:
            if getattr(self, name) is None:
                raise ValueError(f"{_alias(name)}: missing; {self.do} needs it")
        for name in ("node", *sorted(_PARAMETERS)):
            if name in said and name not in (*needs, *rule.may):
                raise ValueError(f"{_alias(name)}: {self.do} has no such thing")
        if self.for_s is not None and not rule.lasts:
            raise ValueError(f"for_s: {self.do} does not last, it cannot be taken back")
        return self

    @property
    def lasts(self) -> bool:
        """Whether it goes on until it is taken back."""
        return RULES[self.do].lasts

    @property
    def what(self) -> str:
        """Which fault this is, whatever its parameters: only one of it can be at a time."""
        ends = f"from {self.source} to {self.target}{' one way' * self.one_way}"
        return f"{self.do} {self.node or self.region or ends}"


def parse(said: Mapping[str, Any]) -> Fault:
    """A fault from what a person or a program wrote. Raises `ConfigError`."""
    try:
        return Fault.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        if first["loc"] == ("do",):
            told = f"do: {said.get('do')!r:.40}, expected one of {', '.join(get_args(Kind))}"
        elif where:
            told = f"{where}: {first['input']!r:.40}: {first['msg']}"
        else:
            told = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"fault: {told}") from None


def check(fault: Fault, topology: Topology) -> None:
    """Raise `ConfigError` if the topology lacks what it names or has it in another role.

    Or if the link that it shall make cannot be.
    """
    rule = RULES[fault.do]
    if fault.node is not None:
        node = topology.nodes.get(fault.node)
        if node is None:
            known = ", ".join(topology.nodes)
            raise ConfigError(f"{fault.do}: no node is called {fault.node!r}: {known}")
        if node.role not in rule.roles:
            expected = ", ".join(rule.roles)
            raise ConfigError(
                f"{fault.do}: {fault.node} has the role {node.role}, expected {expected}"
            )
    if fault.region is not None and fault.region not in topology.regions:
        known = ", ".join(topology.regions)
        raise ConfigError(f"{fault.do}: no region is called {fault.region!r}: {known}")
    for name in _ENDS:
        _nodes_at(getattr(fault, name), topology)
    if fault.link is not None:
        link_properties(fault.link)  # what the router would refuse


def struck(fault: Fault, topology: Topology) -> tuple[str, ...]:
    """The nodes that it strikes, as `run.json` has them. Users of a lost region are not lost."""
    if fault.node is not None:
        return (fault.node,)
    if fault.region is not None:
        names = topology.names_of(fault.region)
        return tuple(name for name in names if topology.nodes[name].role != "client")
    ends = [_nodes_at(getattr(fault, name), topology) for name in _ENDS]
    return tuple(sorted({*ends[0], *ends[1]}))


def _nodes_at(end: str | None, topology: Topology) -> list[str]:
    if end is None:
        return []
    return list(topology.nodes) if end == "*" else topology.names_of(end)


def _alias(name: str) -> str:
    return {"source": "from", "target": "to"}.get(name, name)
