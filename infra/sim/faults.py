"""What breaks, when, and for how long: told in words as on a command line.

kill:core-3@60+20      a core's process ends after 60 s and is there again 20 s later, empty
region:seoul@100+60    all cores of a region at once, and without a word: nobody hears of it
                       until their silence is noticed
slow:core-5@30+90x3    its steps take three times as long
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from firstlight.shared.errors import ConfigError

SILENCE_S = 1.6
"""After so long without a word a core counts as lost: the mesh's own promise."""
_FORM = re.compile(
    r"(kill|region|slow):([\w-]+)@(\d+(?:\.\d+)?)(?:\+(\d+(?:\.\d+)?))?(?:x(\d+(?:\.\d+)?))?"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One of them."""

    kind: str
    whom: str
    """`core-N`, or a region's name."""
    at_s: float
    for_s: float | None = None
    """None: until the end."""
    factor: float = 1.0

    def servers(self, cores: int, regions: Sequence[str]) -> list[int]:
        """Whom it strikes, by number."""
        if self.kind == "region":
            first = regions.index(self.whom) * cores
            return list(range(first, first + cores))
        return [int(self.whom.removeprefix("core-"))]

    def check(self, cores: int, regions: Sequence[str]) -> None:
        """Raise `ConfigError` if there is nobody to strike."""
        if self.kind == "region":
            if self.whom not in regions:
                raise ConfigError(f"no region {self.whom!r}: there are {', '.join(regions)}")
            return
        number = self.whom.removeprefix("core-")
        most = cores * len(regions) - 1
        if not (self.whom.startswith("core-") and number.isdecimal() and int(number) <= most):
            raise ConfigError(f"no core {self.whom!r}: there are core-0 to core-{most}")


def parse_fault(text: str) -> Fault:
    """One fault as it is written on a command line. Raises `ConfigError`."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is no fault, as kill:core-3@60+20 or slow:core-5@30+90x3 is")
    kind, whom, at_s, for_s, factor = match.groups()
    if (kind == "slow") != (factor is not None):
        raise ConfigError(f"{text!r}: slow takes a factor, as x3, and the others take none")
    fault = Fault(
        kind, whom, float(at_s), None if for_s is None else float(for_s), float(factor or 1)
    )
    if not (isfinite(fault.at_s) and 0.01 <= fault.factor <= 1000):
        raise ConfigError(f"{text!r}: a factor is from 0.01 to 1000")
    return fault
