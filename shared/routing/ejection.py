"""Which cores an edge leaves out for a while, because they failed it.

Five failures in a row eject a core for 30 s × the times it was ejected, at most 300 s; never more
than a third of the cores at once. When the time is over it is tried again: one more failure ejects
it at once, ten successes in a row (twice the evidence of removal) clear its record. A core that is
proven to lose requests is ejected by the first.

A refusal for want of room adds a penalty that fades: a core that says no quickly must not look
quick. It is no failure. But a core that refuses and says in the same breath that it has room is not
asked for 1 s, twice as long after each refusal in a row, at most 30 s.

Whoever contradicted itself, in one way or the other, is in doubt until it serves: when its time is
over, one request at a time tries it, and the others stay away meanwhile.
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
REST_S = 1.0
REST_MAX_S = 30.0
PROBE_S = 3.0
"""How long others stay away from a core in doubt that one request tries."""
CORES_MAX = 1_024


@dataclass(slots=True)
class _Record:
    failures: int = 0
    successes: int = 0
    times: int = 0
    """How often it was ejected and not cleared since."""
    until: float = 0.0
    rest_s: float = 0.0
    """Of the latest refusal without a reason."""
    doubted: bool = False
    probed: bool = False
    """Whether `until` is only for the others, while a request tries it."""
    penalty: DecayingSum = field(default_factory=lambda: DecayingSum(REFUSAL_HALF_LIFE_S))

    def ejected(self, now: float) -> bool:
        """Whether it is out, not only tried."""
        return now < self.until and not self.probed


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
        if record.doubted:
            record.doubted = record.probed = False
            record.rest_s = record.until = 0.0
        if record.successes >= CLEARED_AFTER:
            record.times = 0

    def failure(self, core: str, *, cores: int, now: float, proven: bool = False) -> bool:
        """The core was lost, or failed a request by its own fault; whether it is ejected by that.

        `cores`: how many the edge knows, so that at most a third of them are out. `proven`: its
        own words show that it is not well.
        """
        record = self._record(core)
        record.successes = 0
        record.failures += 1
        if record.ejected(now):
            return False
        if record.failures < FAILURES_MAX and not (record.times or proven):
            return False
        others = (other for other in self._records.values() if other is not record)
        out = sum(other.ejected(now) for other in others)
        if out + 1 > max(1, int(cores * EJECTED_SHARE_MAX)):
            return False
        record.times += 1
        record.failures = 0
        record.doubted, record.probed = proven, False
        record.until = now + min(EJECTED_MAX_S, EJECTED_S * record.times)
        return True

    def refused(self, core: str, now: float, *, has_room: bool = False) -> None:
        """The core said that it has no room, although it `has_room` by its own word."""
        record = self._record(core)
        record.penalty.add(REFUSAL_PENALTY_MS, now)
        if not has_room or record.ejected(now):  # what was on its way tells nothing new
            return
        record.rest_s = min(REST_MAX_S, max(REST_S, 2 * record.rest_s))
        record.until = now + record.rest_s
        record.doubted, record.probed = True, False

    def asked(self, core: str, now: float) -> None:
        """A request goes to the core: of one in doubt others wait for what becomes of it."""
        record = self._records.get(core)
        if record is not None and record.doubted and now >= record.until:
            record.until, record.probed = now + PROBE_S, True

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
