"""How many cores a region should have, and why: signals for an autoscaler. Sans-IO.

    work    = what arrives in the region, and what origins without cores send there
    by work = ⌈work / (0.7 · capacity of a core)⌉
    by time = ⌈cores · predicted / promised⌉, at most twice as many, if a promise is not kept
    wanted  = the greater; more when that has held for 10 s, fewer when it has for 5 min

What is predicted is the time to the first token of a prompt of usual length on the median core,
behind what is queued there; a more important request may overtake, so for its class that is an
upper bound. What nobody has reported is unknown, and never 0: nobody should scale a region to
nothing because it was not heard of.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import ceil
from statistics import median

from firstlight.shared.errors import ConfigError
from firstlight.shared.routing.cost import CoreState, cost_of, known_prefill_ms, step_ms
from firstlight.shared.routing.spill import REGIONS_MAX, Table
from firstlight.shared.types import Load, Priority, Report, Role

PROMPT_TOKENS_PRIOR = 512
GROW_AFTER_S = 10.0
SHRINK_AFTER_S = 300.0
FACTOR_MAX = 2.0
"""As many times more cores are wanted at once for the sake of a promise."""
CLASSES = tuple(priority.name.lower() for priority in Priority)


@dataclass(frozen=True, slots=True)
class ScaleConfig:
    """What a region is scaled for."""

    promised_ttft_ms: dict[str, float] = field(
        default_factory=lambda: {"critical": 1000.0, "interactive": 1000.0, "batch": 8000.0}
    )
    """Time to the first token by class; a class that is not named has no promise."""
    utilisation: float = 0.7
    """Of capacity, that is aimed at. Above 0.85 work is sent to other regions."""
    cores_min: int = 1
    """A region."""
    cores_max: int = 1000

    def __post_init__(self) -> None:
        """Raise `ConfigError` for what cannot be aimed at."""
        for name, ms in self.promised_ttft_ms.items():
            if name not in CLASSES:
                raise ConfigError(f"promised_ttft_ms names {name!r}, expected {', '.join(CLASSES)}")
            if not 1.0 <= ms <= 3_600_000.0:
                raise ConfigError(f"promised_ttft_ms.{name} is {ms}, not 1 to 3,600,000")
        if not 0.05 <= self.utilisation <= 1.0:
            raise ConfigError(f"utilisation is {self.utilisation}, not 0.05 to 1")
        if not 0 <= self.cores_min <= self.cores_max <= 100_000:
            raise ConfigError(
                f"cores_min is {self.cores_min} and cores_max {self.cores_max}, not from 0 on, "
                "in this order, to 100,000"
            )


@dataclass(frozen=True, slots=True)
class Promise:
    """A class: what it is promised, and what it should get."""

    promised_ms: float
    predicted_ms: float | None
    kept: bool | None


@dataclass(frozen=True, slots=True)
class RegionScale:
    """One region; what is not known of it is None."""

    region: str
    cores: int | None
    """That are well."""
    offered_per_s: float | None
    """Prefill-token equivalents a second that should be computed here."""
    refused_per_s: float | None
    capacity_per_s: float | None
    utilisation: float | None
    """Offered over capacity."""
    ttft: Mapping[str, Promise]
    """By class."""
    wanted: int | None
    reason: str
    prefill_share: float | None
    """Of the time that cores spend, if no prompt were cached: what share is prefill."""
    prefill_cores: int | None = None
    """Of `wanted`, as many as should prefill if the two were done apart."""
    decode_cores: int | None = None


@dataclass(slots=True)
class _Past:
    """What a region wanted lately, and what is said that it wants."""

    said: int | None = None
    looks: "deque[tuple[float, int]]" = field(default_factory=deque)
    per_core: float = 0.0
    """Capacity of one, as last known."""


class Scaler:
    """The signals of one replica. `step` every second."""

    def __init__(self, config: ScaleConfig, capacity_of: Callable[[Load], float]) -> None:
        """`capacity_of`: a core's, prefill-token equivalents a second; 0: not measured yet."""
        self._config = config
        self._capacity_of = capacity_of
        self._past: dict[str, _Past] = {}
        """By region, in the order in which they were heard last."""
        self.regions: tuple[RegionScale, ...] = ()
        """As of the last step, by name; a region that was heard of once stays, unless
        `REGIONS_MAX` others were heard since."""

    def step(
        self, reports: Sequence[Report], suspects: Collection[str], table: Table, now: float
    ) -> None:
        """Look at what was heard."""
        well = [r for r in reports if r.info.node not in suspects and not r.load.draining]
        self._hear({report.info.region for report in reports})
        self.regions = tuple(
            self._region(region, past, _Region.of(region, reports, well, table), now)
            for region, past in sorted(self._past.items())
        )

    def _hear(self, heard: Set[str]) -> None:
        """What was not heard for the longest goes, if a new region needs its place."""
        for region in sorted(heard):
            if region not in self._past and len(self._past) >= REGIONS_MAX:
                silent = next((name for name in self._past if name not in heard), None)
                if silent is None:
                    continue
                del self._past[silent]
            self._past[region] = self._past.pop(region, _Past())

    def _region(self, region: str, past: _Past, at: "_Region", now: float) -> RegionScale:
        measured = [c for core in at.cores if (c := self._capacity_of(core.load)) > 0.0]
        if measured:
            past.per_core = sum(measured) / len(measured)
        capacity = past.per_core * len(at.cores) if past.per_core else None
        predicted_ms = at.predicted_ms()
        ttft = {
            name: Promise(ms, predicted_ms, None if predicted_ms is None else predicted_ms <= ms)
            for name, ms in self._config.promised_ttft_ms.items()
        }
        raw, reason = self._raw(at, past, ttft)
        wanted: int | None = None
        if raw is None:
            past.looks.clear()  # nothing that was seen before the silence counts after it
        else:
            wanted, reason = _steady(past, raw, reason, now)
        share = at.prefill_share()
        prefill = None
        if wanted is not None and share is not None and wanted >= 2:
            prefill = min(wanted - 1, max(1, round(wanted * share)))
        return RegionScale(
            region=region,
            cores=len(at.cores) if at.heard else None,
            offered_per_s=at.offered,
            refused_per_s=at.refused,
            capacity_per_s=capacity if at.heard else None,
            utilisation=at.offered / capacity if at.offered is not None and capacity else None,
            ttft=ttft,
            wanted=wanted,
            reason=reason,
            prefill_share=share,
            prefill_cores=prefill,
            decode_cores=None if prefill is None or wanted is None else wanted - prefill,
        )

    def _raw(
        self, at: "_Region", past: _Past, ttft: Mapping[str, Promise]
    ) -> tuple[int | None, str]:
        """How many cores the figures of now ask for, and why."""
        if not at.heard:
            return None, "unknown: no node of this region is heard"
        if at.offered is None:
            return None, "unknown: no edge tells how much work arrives for this region"
        if not past.per_core:
            return None, "unknown: no core here has measured how fast it is"
        by_work = ceil(at.offered / (self._config.utilisation * past.per_core) - 1e-9)
        wanted, reason = by_work, f"{at.offered:.0f} of work a second"
        late = [
            (one.predicted_ms / one.promised_ms, name)
            for name, one in ttft.items()
            if one.predicted_ms is not None and not one.kept
        ]
        if late:
            factor, name = max(late)
            by_time = ceil(len(at.cores) * min(FACTOR_MAX, factor))
            if by_time > wanted:
                wanted = by_time
                promise = ttft[name]
                reason = (
                    f"{promise.predicted_ms:.0f} ms to the first token, "
                    f"{promise.promised_ms:.0f} promised ({name})"
                )
        bounded = min(self._config.cores_max, max(self._config.cores_min, wanted))
        return bounded, reason if bounded == wanted else f"{reason}; limit of {bounded}"


def _steady(past: _Past, raw: int, reason: str, now: float) -> tuple[int | None, str]:
    """What is said: more when it was wanted for a while, fewer when it was for long.

    Nothing at first: whoever has just begun has not heard of everybody yet.
    """
    past.looks.append((now, raw))
    while len(past.looks) > 1 and past.looks[1][0] <= now - SHRINK_AFTER_S:
        past.looks.popleft()
    watched_s = now - past.looks[0][0]
    if watched_s >= GROW_AFTER_S:
        lately = [count for at, count in past.looks if at >= now - GROW_AFTER_S]
        if past.said is None:
            past.said = max(lately)
        past.said = max(past.said, min(lately))
        if watched_s >= SHRINK_AFTER_S:
            past.said = min(past.said, max(count for _, count in past.looks))
    if past.said is None:
        return None, f"unknown: {raw} for {reason}, watched for {watched_s:.0f} s only"
    if raw != past.said:
        return past.said, f"{raw} for {reason}, but not for long enough"
    return past.said, reason


@dataclass(frozen=True, slots=True)
class _Region:
    """What was reported that concerns one region."""

    heard: bool
    cores: tuple[Report, ...]
    """That are well."""
    offered: float | None
    refused: float | None
    prompt_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    requests_per_s: float = 0.0

    @classmethod
    def of(
        cls, region: str, reports: Sequence[Report], well: Sequence[Report], table: Table
    ) -> "_Region":
        """Gathered from all reports."""
        homes = {r.info.region for r in reports if r.info.role is Role.CORE}
        shares: list[tuple[float, Report]] = []
        for report in reports:
            origin = report.info.region
            if report.info.role is not Role.EDGE or report.demand is None:
                continue
            if origin == region:
                shares.append((1.0, report))
            elif origin not in homes and origin in table and (part := table[origin].share(region)):
                shares.append((part, report))

        def total(name: str) -> float:
            return float(sum(part * getattr(report.demand, name) for part, report in shares))

        return cls(
            heard=any(r.info.region == region for r in reports),
            cores=tuple(r for r in well if r.info.role is Role.CORE and r.info.region == region),
            offered=total("work_per_s") if shares else None,
            refused=total("refused_per_s") if shares else None,
            prompt_tokens_per_s=total("prompt_tokens_per_s"),
            output_tokens_per_s=total("output_tokens_per_s"),
            requests_per_s=total("requests_per_s"),
        )

    def predicted_ms(self) -> float | None:
        """To the first token of a usual prompt, on the median core; None without one."""
        states = [
            CoreState(core.info.node, core.info.region, core.load, rtt_ms=0.0)
            for core in self.cores
            if core.load.prefill_ms_per_token > 0.0
        ]
        if not states:
            return None
        tokens = PROMPT_TOKENS_PRIOR
        if self.requests_per_s > 0.0:
            tokens = max(1, round(self.prompt_tokens_per_s / self.requests_per_s))
        return median(cost_of(state, prompt_tokens=tokens).ms for state in states)

    def prefill_share(self) -> float | None:
        """Of the time that the work takes; None while nothing is measured or nothing comes."""
        loads = [core.load for core in self.cores]
        decode = [
            step_ms(load.step_ms, rows) / rows
            for load in loads
            if (rows := max(1, load.running)) and load.step_ms
        ]
        if not decode or not any(load.prefill_ms_per_token > 0.0 for load in loads):
            return None
        prefill_ms = known_prefill_ms(
            [CoreState(c.info.node, c.info.region, c.load, rtt_ms=0.0) for c in self.cores]
        )
        prefill = self.prompt_tokens_per_s * prefill_ms
        decoding = self.output_tokens_per_s * median(decode)
        return prefill / (prefill + decoding) if prefill + decoding > 0.0 else None
