"""Which cores an edge leaves out for a while, because they failed it.

Five failures in a row eject a core for 30 s × the times it was ejected, at most 300 s; never more
than a third of the cores at once. When the time is over it is tried again: one more failure ejects
it at once, ten successes in a row (twice the evidence of removal) clear its record. A refusal for
want of room never ejects; it adds a penalty that fades: a core that says no quickly must not look
quick.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from firstlight.shared.estimate import DecayingSum

FAILURES_MAX = 5
CLEARED_AFTER = 2 * FAILURES_MAX
EJECTED_S = 30.0
EJECTED_MAX_S = 300.0
EJECTED_SHARE_MAX = 1 / 3
REFUSAL_PENALTY_MS = 200.0
REFUSAL_HALF_LIFE_S = 2.0
CORES_MAX = 1_024


@dataclass(slots=True)
class _Record:
    failures: int = 0
    successes: int = 0
    times: int = 0
    """How often it was ejected and not cleared since."""
    until: float = 0.0
    penalty: DecayingSum = field(default_factory=lambda: DecayingSum(REFUSAL_HALF_LIFE_S))


class Ejection:
    """The records of all cores, by name; bounded, the longest untouched goes first."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def success(self, core: str) -> None:
        """The core committed a first token."""
        record = self._records.get(core)
        if record is None:
            return
        record.failures = 0
        record.successes += 1
        if record.successes >= CLEARED_AFTER:
            record.times = 0

    def failure(self, core: str, *, cores: int, now: float) -> bool:
        """The core was lost, or failed a request by its own fault; whether it is ejected by that.

        `cores`: how many the edge knows, so that at most a third of them are out.
        """
        record = self._record(core)
        record.successes = 0
        record.failures += 1
        if now < record.until:
            return False
        if record.failures < FAILURES_MAX and not record.times:
            return False
        out = sum(now < other.until for other in self._records.values())
        if out + 1 > max(1, int(cores * EJECTED_SHARE_MAX)):
            return False
        record.times += 1
        record.failures = 0
        record.until = now + min(EJECTED_MAX_S, EJECTED_S * record.times)
        return True

    def refused(self, core: str, now: float) -> None:
        """The core said that it has no room."""
        self._record(core).penalty.add(REFUSAL_PENALTY_MS, now)

    def ejected(self, core: str, now: float) -> bool:
        """Whether the core is to be left out."""
        record = self._records.get(core)
        return record is not None and now < record.until

    def penalty_ms(self, core: str, now: float) -> float:
        """What its late refusals add to its expected time."""
        record = self._records.get(core)
        return 0.0 if record is None else record.penalty.value(now)

    def _record(self, core: str) -> _Record:
        record = self._records.setdefault(core, _Record())
        self._records.move_to_end(core)
        if len(self._records) > CORES_MAX:
            self._records.popitem(last=False)
        return record
