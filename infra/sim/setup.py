"""All that a simulation is given, as one value that can be printed."""

from dataclasses import dataclass, field, replace

from firstlight.infra.sim.core import CoreSpec
from firstlight.infra.sim.faults import Fault
from firstlight.infra.sim.matrix import GORGO, Matrix
from firstlight.shared.engine.steptable import H100_8B
from firstlight.shared.errors import ConfigError

NODES_MAX = 100_000
H100_8B_CORE = CoreSpec(
    H100_8B, pool_tokens=420_000, sequences_max=32, waiting_max=32, prefill_chunk=8192
)
"""80 GB hold 16 GB of weights, what a step needs, and 55 GB of keys and values: 131,072 bytes each.
32 sequences of the Mooncake trace's mean length fill them."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The mesh, what happens to it, and the draw."""

    matrix: Matrix = GORGO
    cores: int = 4
    """In each region."""
    edges: int = 2
    """Deciders in each region."""
    spec: CoreSpec = H100_8B_CORE
    seed: int = 0
    faults: tuple[Fault, ...] = field(default=())
    stretches: bool = True

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a mesh without nodes, or with too many."""
        nodes = (self.cores + self.edges) * len(self.matrix.regions)
        if self.cores < 1 or self.edges < 1 or nodes > NODES_MAX:
            raise ConfigError(
                f"{self.cores} cores and {self.edges} edges in each of "
                f"{len(self.matrix.regions)} regions: at least one of each, {NODES_MAX} in all"
            )
        for fault in self.faults:
            fault.check(self.cores, self.matrix.regions)

    @property
    def servers(self) -> int:
        """Cores of all regions."""
        return self.cores * len(self.matrix.regions)

    def with_seed(self, seed: int) -> "Setup":
        """The same with another draw."""
        return replace(self, seed=seed)
