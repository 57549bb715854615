"""Which cores an edge leaves out for a while, because they failed it.

Five failures in a row eject a core for 30 s × the times it was ejected, at most 300 s; never more
than a third of the cores at once. So does a share of successes that is lower than the others' mean
by 1.9 of their standard deviations, once five cores have served enough lately to tell (of fewer
none can be so far off). When the time is over it is tried again, with a tenth of its room, which
grows for 30 s: one more failure ejects it at once, ten successes in a row (twice the evidence of
removal) clear its record. A core that is proven to lose requests is ejected by the first.

A refusal for want of room adds a penalty that fades: a core that says no quickly must not look
quick. It is no failure. But a core that refuses and says in the same breath that it has room is not
asked for 1 s, twice as long after each refusal in a row, at most 30 s.

Whoever contradicted itself, in one way or the other, is in doubt until it serves: when its time is
over, one request at a time tries it, and the others stay away meanwhile.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from statistics import fmean, pstdev

from firstlight.shared.estimate import DecayingSum

FAILURES_MAX = 5
CLEARED_AFTER = 2 * FAILURES_MAX
EJECTED_S = 30.0
EJECTED_MAX_S = 300.0
EJECTED_SHARE_MAX = 1 / 3
RATE_SIGMAS = 1.9
RATE_GAP_MIN = 0.05
"""Where all are equally good a standard deviation is next to nothing."""
RATE_CORES_MIN = 5
RATE_REQUESTS_MIN = 20.0
RATE_HALF_LIFE_S = 30.0
GROW_S = 30.0
GROWN_MIN = 0.1
"""Slow start, as Envoy has it."""
REFUSAL_PENALTY_MS = 200.0
REFUSAL_HALF_LIFE_S = 2.0
REST_S = 1.0
REST_MAX_S = 30.0
PROBE_S = 3.0
"""How long others stay away from a core in doubt that one request tries."""
CORES_MAX = 1_024


@dataclass(frozen=True, slots=True)
class Mark:
    """What is held against a core."""

    ejected: bool = False
    """It is to be left out."""
    penalty_ms: float = 0.0
    """What its late refusals add to its expected time."""
    grown: float = 1.0
    """How much of its room it may use, since it was ejected."""


CLEAN = Mark()
PENALTY_MS_MIN = 0.5
"""One that has faded so far is none."""


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
    back_at: float | None = None
    """When the latest ejection ended, or will; None if there was none."""
    penalty: DecayingSum = field(default_factory=lambda: DecayingSum(REFUSAL_HALF_LIFE_S))
    good: DecayingSum = field(default_factory=lambda: DecayingSum(RATE_HALF_LIFE_S))
    bad: DecayingSum = field(default_factory=lambda: DecayingSum(RATE_HALF_LIFE_S))

    def rate(self, now: float) -> float | None:
        """The share of successes lately; None: too few requests to say."""
        good, bad = self.good.value(now), self.bad.value(now)
        return good / (good + bad) if good + bad >= RATE_REQUESTS_MIN else None

    def mark(self, now: float) -> "Mark":
        """What a decision is to know."""
        grown = 1.0
        if self.back_at is not None and now < self.back_at + GROW_S:
            grown = min(1.0, max(GROWN_MIN, (now - self.back_at) / GROW_S))
        return Mark(now < self.until, self.penalty.value(now), grown)

    def ejected(self, now: float) -> bool:
        """Whether it is out, not only tried."""
        return now < self.until and not self.probed


class Ejection:
    """The records of all cores, by name; bounded, the longest untouched goes first."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._marked: set[str] = set()
        """Cores against whom something may be held: few of those that have a record."""

    def success(self, core: str, now: float) -> None:
        """The core committed a first token."""
        record = self._record(core)
        record.good.add(1.0, now)
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
        record.bad.add(1.0, now)
        if record.ejected(now):
            return False
        enough = record.failures >= FAILURES_MAX or record.times > 0 or proven
        if not (enough or self._stands_out(record, now)):
            return False
        others = (other for other in self._records.values() if other is not record)
        out = sum(other.ejected(now) for other in others)
        if out + 1 > max(1, int(cores * EJECTED_SHARE_MAX)):
            return False
        record.times += 1
        record.failures = 0
        record.doubted, record.probed = proven, False
        self._marked.add(core)
        record.until = record.back_at = now + min(EJECTED_MAX_S, EJECTED_S * record.times)
        return True

    def refused(self, core: str, now: float, *, has_room: bool = False) -> None:
        """The core said that it has no room, although it `has_room` by its own word."""
        record = self._record(core)
        record.penalty.add(REFUSAL_PENALTY_MS, now)
        self._marked.add(core)
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
            self._marked.add(core)

    def marks(self, now: float) -> dict[str, Mark]:
        """What is held against cores, of those against whom something is."""
        marks: dict[str, Mark] = {}
        for core in tuple(self._marked):
            record = self._records.get(core)
            mark = CLEAN if record is None else record.mark(now)
            if mark.ejected or mark.grown < 1.0 or mark.penalty_ms >= PENALTY_MS_MIN:
                marks[core] = mark
            else:
                self._marked.discard(core)
        return marks

    def ejected(self, core: str, now: float) -> bool:
        """Whether the core is to be left out."""
        record = self._records.get(core)
        return record is not None and now < record.until

    def penalty_ms(self, core: str, now: float) -> float:
        """What its late refusals add to its expected time."""
        record = self._records.get(core)
        return 0.0 if record is None else record.penalty.value(now)

    def _stands_out(self, record: _Record, now: float) -> bool:
        """Whether it fails so much more often than the others that it is to be ejected."""
        rate = record.rate(now)
        rates = [one for other in self._records.values() if (one := other.rate(now)) is not None]
        if rate is None or len(rates) < RATE_CORES_MIN:
            return False
        mean = fmean(rates)
        return rate < mean - max(RATE_SIGMAS * pstdev(rates), RATE_GAP_MIN)

    def _record(self, core: str) -> _Record:
        record = self._records.setdefault(core, _Record())
        self._records.move_to_end(core)
        if len(self._records) > CORES_MAX:
            self._records.popitem(last=False)
        return record
