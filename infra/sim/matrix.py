"""Round trips between regions, and what a message on such a way meets.

A message takes half a round trip, some jitter, and, if it is lost, the time until it is sent again;
messages between the same two arrive in the order in which they were sent, as on a stream. Sans-IO.
"""

from dataclasses import dataclass
from random import Random

from firstlight.infra.lab.presets import PLACES, round_trip_ms
from firstlight.shared.errors import ConfigError

LOCAL_MS = 2.0
"""Within a region of a cloud, between edge and core."""
RESENT_RTTS = 1.25
"""A lost message is missed, and sent again, after about so many round trips (RFC 9002, 6.2)."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Regions, and round trips between them; the diagonal is the way within one."""

    name: str
    regions: tuple[str, ...]
    rtt_ms: tuple[tuple[float, ...], ...]
    jitter_ms: float = 0.0
    """Mean of what a message takes beyond half the round trip; exponential."""
    loss: float = 0.0
    """Of messages."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for what is no matrix of round trips."""
        size = len(self.regions)
        square = len(self.rtt_ms) == size and all(len(row) == size for row in self.rtt_ms)
        if not size or not square or not all(0 <= ms < 60_000 for row in self.rtt_ms for ms in row):
            rows = ";".join(",".join(f"{ms:g}" for ms in row) for row in self.rtt_ms)
            raise ConfigError(
                f"round trips {rows!r} of {size} regions, expected as many rows, each of as many "
                "times from 0, below 60000 ms"
            )
        if not (0 <= self.jitter_ms < 60_000 and 0 <= self.loss < 1):
            raise ConfigError(f"jitter {self.jitter_ms} ms, loss {self.loss}: not from 0, below 1")


GORGO = Matrix(
    "gorgo",
    ("ashburn", "frankfurt", "seoul"),
    ((37.0, 279.0, 456.0), (279.0, 37.0, 279.0), (456.0, 279.0, 37.0)),
)
"""37, 279 and 456 ms are what GORGO (arXiv 2602.11688) measured from Ashburn, the whole way of a
request. Between the other two nothing was published: the nearer of the two is taken."""


def azure(regions: tuple[str, ...]) -> Matrix:
    """Between places of Azure, see `infra.lab.presets`. Raises `ConfigError`."""
    for region in regions:
        if region not in PLACES:
            raise ConfigError(
                f"{region!r} is none of {', '.join(MATRICES)}, and none of Azure's places: "
                f"{', '.join(PLACES)}"
            )
    rows = tuple(
        tuple(LOCAL_MS if one == other else round_trip_ms(one, other) or 0.0 for other in regions)
        for one in regions
    )
    return Matrix("azure", regions, rows)


def written(text: str) -> Matrix:
    """Round trips as `2,80;80,2`: a row a region. Raises `ConfigError`."""
    try:
        rows = tuple(tuple(float(ms) for ms in row.split(",")) for row in text.split(";"))
    except ValueError as error:
        raise ConfigError(f"{text!r} is no matrix of round trips in ms, as 2,80;80,2") from error
    return Matrix("written", tuple(f"region-{n}" for n in range(len(rows))), rows)


MATRICES = {"gorgo": GORGO, "azure": azure(("east-us", "west-europe", "japan-east"))}
"""By name."""


class Path:
    """One direction between two nodes."""

    def __init__(self, rtt_ms: float, matrix: Matrix, rng: Random) -> None:
        self._one_way_s, self._rtt_s = rtt_ms / 2000, rtt_ms / 1000
        self._jitter_s, self._loss, self._rng = matrix.jitter_ms / 1000, matrix.loss, rng
        self._last_s = 0.0

    @property
    def one_way_s(self) -> float:
        """What a message takes at least."""
        return self._one_way_s

    def arrival_s(self, now: float) -> float:
        """When a message that is sent now is there."""
        at_s = now + self._one_way_s
        if self._jitter_s:
            at_s += self._rng.expovariate(1 / self._jitter_s)
        while self._loss and self._rng.random() < self._loss:
            at_s += RESENT_RTTS * self._rtt_s
        self._last_s = max(self._last_s, at_s)
        return self._last_s
