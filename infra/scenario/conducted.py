"""What came of a scenario so far. Sans-IO."""

from dataclasses import dataclass, field

from firstlight.infra.scenario.figures import Row
from firstlight.infra.scenario.limits import Judged


@dataclass(slots=True)
class Conducted:
    """Filled by `conduct` as it goes."""

    rows: dict[str, Row] = field(default_factory=dict)
    judged: list[Judged] = field(default_factory=list)
    """In the order of the file."""
    schedule: list[str] = field(default_factory=list)
    """Of all phases, as drawn from the seed."""
    problems: list[str] = field(default_factory=list)
    """What went wrong with the run itself, and not with the mesh."""
    shares: dict[str, float] = field(default_factory=dict)
    """Of a CPU, that the laboratory's own parts took."""
