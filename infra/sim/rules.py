"""The rules that can be run, and in which ways: everywhere or nearby, with which knob."""

from collections.abc import Iterable
from dataclasses import dataclass

from firstlight.infra.sim.mesh import Mesh
from firstlight.infra.sim.nearby import Nearby
from firstlight.infra.sim.ours import Firstlight
from firstlight.infra.sim.policies.policy import Policy
from firstlight.infra.sim.policies.published import POLICIES
from firstlight.shared.errors import ConfigError

PUBLISHED = {policy.name: policy for policy in POLICIES}
NAMES = (Firstlight.name, *PUBLISHED)
"""Of all rules, ours first."""


@dataclass(frozen=True, slots=True)
class Way:
    """One rule in one way."""

    rule: str
    nearby: bool = False
    knob: float | None = None
    """None: the published value."""

    @property
    def told(self) -> str:
        """For people."""
        where = "nearest region" if self.nearby else "all regions"
        if self.rule == Firstlight.name:
            return "as it is"
        return where if len(knobs(self.rule)) < 2 else f"{where}, knob {self.knob:g}"

    def make(self, edge: int, mesh: Mesh) -> Policy:
        """The rule for one edge."""
        del edge
        if self.rule == Firstlight.name:
            return Firstlight(mesh)
        kind = PUBLISHED[self.rule]
        policy: Policy = kind(kind.knobs[0] if self.knob is None else self.knob)
        return Nearby(policy) if self.nearby else policy


def chosen(names: str) -> tuple[str, ...]:
    """`all`, or some names with commas between. Raises `ConfigError`."""
    if names == "all":
        return NAMES
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if name not in NAMES:
            raise ConfigError(f"no rule {name!r}: there are {', '.join(NAMES)}")
    if not asked:
        raise ConfigError("no rule was named")
    return tuple(dict.fromkeys(asked))


def knobs(rule: str) -> tuple[float, ...]:
    """Values of its main knob; ours has none that would have to be tuned."""
    return PUBLISHED[rule].knobs if rule in PUBLISHED else Firstlight.knobs


def ways(rule: str) -> Iterable[bool]:
    """Whether it is run nearby; one without a network term is run both ways."""
    if rule in PUBLISHED and not PUBLISHED[rule].has_network_term:
        return (False, True)
    return (False,)
