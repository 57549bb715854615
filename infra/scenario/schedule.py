"""When the faults of a phase come: at times, or when a stream has so many ids. Sans-IO.

All lots are drawn at once from the seed and the phase's name, so that a seed gives the same
schedule whatever happens in the run.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from firstlight.infra.lab.fault_plan import Fault
from firstlight.infra.scenario.scenario import ITS_CORE, ITS_EDGE, FaultSpec, Phase, drawn, places


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault to come."""

    fault: Fault
    at_s: float | None = None
    """After the phase's begin."""
    at_token: int | None = None
    load: str = ""
    stream: int = 0

    def __str__(self) -> str:
        """For people; the same for one seed."""
        what = self.fault.what + (
            "" if self.fault.for_s is None else f" for {self.fault.for_s:g} s"
        )
        if self.at_s is not None:
            return f"{what}, at {self.at_s:.3f} s"
        return f"{what}, at token {self.at_token} of stream {self.stream} of {self.load!r}"


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a stream is."""

    load: str
    stream: int
    ids: int
    core: str
    """Who serves it."""
    edge: str


class Schedule:
    """The faults of one phase that have not come yet."""

    def __init__(self, phase: Phase, seed: int) -> None:
        random = Random(f"{seed}/{phase.name}")
        self.planned = tuple(_planned(spec, phase, random) for spec in phase.faults)
        self._timed = sorted(
            (one for one in self.planned if one.at_s is not None), key=lambda one: one.at_s or 0.0
        )
        self._at_tokens = [one for one in self.planned if one.at_token is not None]
        """Replaced, never changed: clients' threads look whether it waits for their streams."""

    def due(self, since_s: float) -> Iterator[Fault]:
        """Those whose time has come, `since_s` after the phase's begin; each once."""
        while self._timed and (self._timed[0].at_s or 0.0) <= since_s:
            yield self._timed.pop(0).fault

    def waits_for(self, load: str, stream: int) -> bool:
        """Whether tokens of this stream may bring one."""
        return any((one.load, one.stream) == (load, stream) for one in self._at_tokens)

    def reached(self, seen: Seen) -> Iterator[Fault]:
        """Those that come because a stream has so many ids; each once."""
        for one in self._at_tokens:
            its = (one.load, one.stream) == (seen.load, seen.stream)
            if its and seen.ids >= (one.at_token or 0):
                self._at_tokens = [other for other in self._at_tokens if other is not one]
                yield _of_stream(one.fault, seen)

    @property
    def left(self) -> tuple[Planned, ...]:
        """Those that have not come."""
        return (*self._timed, *self._at_tokens)


def _planned(spec: FaultSpec, phase: Phase, random: Random) -> Planned:
    if spec.at_s is not None:
        return Planned(spec.fault, at_s=drawn(spec.at_s, random))
    assert spec.at_token is not None
    at_token = round(drawn(spec.at_token, random))
    load = spec.load or phase.load[0].name
    return Planned(spec.fault, at_token=at_token, load=load, stream=spec.stream)


def _of_stream(fault: Fault, seen: Seen) -> Fault:
    served = {ITS_CORE: seen.core, ITS_EDGE: seen.edge}
    named = {name: served.get(value or "") for name, value in places(fault).items()}
    return fault.model_copy(update={name: node for name, node in named.items() if node})
