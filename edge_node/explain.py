"""What is told of a request's timeline: entries and phases on one axis. Sans-IO.

The axis is the edge's: ms since the request's first byte. Clocks never cross nodes, so a core's
marks, which count from its own `Open`, are put at open + rtt/2, and never beyond what the edge saw
itself: its first id not after the commit that brought it, its end not after the last.

A choice's phases follow each other without a gap from the first byte to its end, so that they add
up to the time that it took.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import inf

from firstlight.edge_node.answer import ChoiceStats
from firstlight.edge_node.timeline import Timeline
from firstlight.shared.types import Cost, Mark, Route

Object = dict[str, object]

PLACED = "core's clock, put at open + rtt/2"
"""Said with each entry that a core made."""

_EDGE_PHASES = {
    "received": "read and tokenize",
    "tokenized": "route",
    "left": "move",
    "last id": "ending",
}
"""The phase that begins with an entry of the edge's; others depend on more, or begin none."""
_CORE_PHASES = {
    "queued": "queue",
    "first step": "prefill",
    "preempted": "preempted",
    "stalled": "client not reading",
    "resumed": "decode",
    "no marks": "unknown",
    "first id": "network",
    "finished": "network",
    "cancelled": "network",
    "failed": "network",
}
"""The same for a core's marks; others lie within the phase before."""
_ENDS = ("ended", "gave up", "cancelled")
_AFTER_CORE = ("first commit", "last id", "left", *_ENDS)
"""What the edge saw at the very moment at which a mark was put comes after the mark."""
_NO_MARKS = {
    "lost": "lost with the core",
    "cancelled": "nobody waited for them",
    "last id": "they did not come in time",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    ms: float
    node: str
    what: str
    choice: int | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    of_core: bool = False

    @property
    def order(self) -> tuple[float, bool]:
        return self.ms, not self.of_core and self.what in _AFTER_CORE

    def told(self) -> Object:
        told: Object = {"ms": round(self.ms, 3), "node": self.node, "what": self.what}
        if self.choice is not None:
            told["choice"] = self.choice
        for name, value in self.facts.items():
            if isinstance(value, Route):
                told |= _route(value)
            elif isinstance(value, ChoiceStats):
                told |= _stats(value)
            else:
                told[name] = round(value, 3) if isinstance(value, float) else value
        return told


@dataclass(frozen=True, slots=True)
class _Begin:
    """A phase begins."""

    ms: float
    name: str
    node: str


@dataclass(slots=True)
class _Epoch:
    """A choice's time on one core, in ms on the edge's axis."""

    choice: int
    number: int
    core: str
    opened_ms: float
    rtt_ms: float
    first_ms: float = inf
    """Its first commit here."""
    closed_ms: float = inf
    first_said: tuple[Mark, ...] = ()
    """What the first commit says of how it came to be, should the marks never come."""
    marks: tuple[Mark, ...] = ()
    no_marks: str = "they come at its end"

    def follow(self, entry: _Entry) -> None:
        """Take note of what the edge saw while the choice was here."""
        if entry.what == "first commit" and self.first_ms == inf:
            self.first_ms = entry.ms
            self.first_said = _said(entry.facts)
        elif entry.what in ("last id", "left", *_ENDS) and self.closed_ms == inf:
            self.closed_ms = entry.ms
            how = str(entry.facts.get("how", entry.what))
            self.no_marks = _NO_MARKS.get(how, "the core sent none")

    def entries(self) -> list[_Entry]:
        """What the core said, at its place on the edge's axis."""
        zero_ms = self.opened_ms + self.rtt_ms / 2
        last_ms = min(zero_ms, self.first_ms, self.closed_ms)
        entries, early = [], True
        for mark in self.marks or self.first_said:
            most_ms = min(self.first_ms, self.closed_ms) if early else self.closed_ms
            last_ms = max(last_ms, min(most_ms, zero_ms + mark.ms))
            early = early and mark.what != "first id"
            facts = {"detail": mark.detail, "core_ms": mark.ms, "placed": PLACED}
            entries.append(self._entry(last_ms, mark.what, facts))
        if not self.marks:
            what = "no more marks" if self.first_said else "no marks"
            entries.append(self._entry(last_ms, what, {"detail": self.no_marks}))
        return entries

    def _entry(self, ms: float, what: str, facts: Object) -> _Entry:
        facts = {"epoch": self.number, **facts}
        return _Entry(ms, self.core, what, self.choice, facts, of_core=True)


def explain(timeline: Timeline, *, edge: str, now: float) -> Object:
    """The whole, as JSON can say it."""
    seen = [_Entry(0.0, edge, "received")]
    for noted_s, what, choice, facts in timeline.notes:
        seen.append(_Entry(_since(timeline, noted_s), edge, what, choice, facts))
    seen.sort(key=lambda entry: entry.ms)
    entries = [entry for entry in seen if entry.what != "marks"]
    for epoch in _epochs(seen):
        entries += epoch.entries()
    entries.sort(key=lambda entry: entry.order)
    status = _status({entry.what for entry in seen})
    total_ms = _since(timeline, now) if status == "running" else entries[-1].ms
    first_ms = _first_token_ms(entries)
    return {
        "object": "firstlight.timeline",
        "id": timeline.id,
        "edge": edge,
        "status": status,
        "streams": list(timeline.streams),
        "first_token_ms": None if first_ms is None else round(first_ms, 3),
        "total_ms": round(total_ms, 3),
        "phases": [
            phase
            for choice in range(len(timeline.streams) or 1)
            for phase in _phases(entries, choice, edge, total_ms)
        ],
        "entries": [entry.told() for entry in entries],
        "left_out": timeline.left_out,
    }


def _said(facts: Mapping[str, object]) -> tuple[Mark, ...]:
    queue_ms, prefill_ms = facts.get("queue_ms"), facts.get("prefill_ms")
    if not isinstance(queue_ms, float) or not isinstance(prefill_ms, float):
        return ()
    detail = "as its first commit said"
    return (
        Mark("queued", 0.0, detail),
        Mark("first step", queue_ms, detail),
        Mark("first id", queue_ms + prefill_ms, detail),
    )


def _epochs(seen: Iterable[_Entry]) -> list[_Epoch]:
    epochs: dict[tuple[int, object], _Epoch] = {}
    current: dict[int, _Epoch] = {}
    for entry in seen:
        choice, facts = entry.choice, entry.facts
        if choice is None:
            continue
        if entry.what == "opened":
            core, number, rtt_ms = facts["core"], facts["epoch"], facts["rtt_ms"]
            assert isinstance(core, str)
            assert isinstance(number, int)
            assert isinstance(rtt_ms, float)
            current[choice] = epochs[choice, number] = _Epoch(
                choice, number, core, entry.ms, rtt_ms
            )
        elif entry.what == "marks":
            marks = facts["marks"]
            assert isinstance(marks, tuple)
            if (epoch := epochs.get((choice, facts["epoch"]))) is not None:
                epoch.marks, epoch.no_marks = marks, "the core sent none"
        elif choice in current:
            current[choice].follow(entry)
    return list(epochs.values())


def _route(route: Route) -> Object:
    candidates = [
        {
            "core": candidate.core,
            "region": candidate.region,
            "expected_ttft_ms": round(candidate.ttft_ms, 3),
            "expected": _cost(candidate.cost),
            "reason": candidate.reason,
        }
        for candidate in route.candidates
    ]
    told: Object = {"reason": route.reason, "candidates": candidates}
    if route.spill:
        told |= {"drawn": route.drawn, "shares": dict(route.spill)}
    return told


def _cost(cost: Cost) -> Object:
    """What the expected time is made of."""
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in asdict(cost).items()
    }


def _stats(stats: ChoiceStats) -> Object:
    return {
        "tokens": stats.completion_tokens,
        "cached_tokens": stats.cached_tokens,
        "moved": stats.moved,
        "continuation": stats.continuation,
        "hints": {source: asdict(count) for source, count in sorted(stats.hints.items())},
    }


def _phases(entries: Sequence[_Entry], choice: int, edge: str, total_ms: float) -> list[Object]:
    """What one choice spent its time with."""
    mine = [entry for entry in entries if entry.choice in (None, choice)]
    spoken_ms = min((entry.ms for entry in mine if entry.what == "first text"), default=-inf)
    end_ms = next((entry.ms for entry in mine if entry.what in _ENDS), total_ms)
    begun: list[_Begin] = []
    core, answered = edge, False
    """Who has the choice, and whether an id of it came from there."""
    for entry in mine:
        if entry.of_core:
            begun += _begun_on_core(entry, edge, answered)
        elif entry.what == "opened":
            core, answered = str(entry.facts["core"]), False
            begun.append(_Begin(entry.ms, "network", f"{edge} → {core}"))
        elif entry.what == "first commit":
            answered = True
            sending = entry.ms < spoken_ms
            begun.append(_Begin(entry.ms, *(("send", edge) if sending else ("decode", core))))
        elif entry.what == "first text":
            begun.append(_Begin(entry.ms, "decode", core))
        elif entry.what in _EDGE_PHASES:
            begun.append(_Begin(entry.ms, _EDGE_PHASES[entry.what], edge))
    return _joined(choice, begun, end_ms)


def _begun_on_core(entry: _Entry, edge: str, answered: bool) -> list[_Begin]:
    phase = _CORE_PHASES.get(entry.what)
    if phase is None or (phase == "unknown" and answered):
        return []  # once an id is here, what the core does is clear
    return [_Begin(entry.ms, phase, f"{entry.node} → {edge}" if phase == "network" else entry.node)]


def _joined(choice: int, begun: Sequence[_Begin], end_ms: float) -> list[Object]:
    """From beginnings to phases: each lasts until the next one; neighbours of a kind are one."""
    spans: list[tuple[_Begin, float]] = []
    for begin, after in pairwise([*begun, _Begin(end_ms, "", "")]):
        until_ms = min(after.ms, end_ms)
        if until_ms <= begin.ms:
            continue
        if spans and (spans[-1][0].name, spans[-1][0].node) == (begin.name, begin.node):
            begin = spans.pop()[0]
        spans.append((begin, until_ms))
    return [
        {
            "choice": choice,
            "phase": begin.name,
            "node": begin.node,
            "begin_ms": round(begin.ms, 3),
            "ms": round(until_ms - begin.ms, 3),
        }
        for begin, until_ms in spans
    ]


def _first_token_ms(entries: Iterable[_Entry]) -> float | None:
    """When the first text was sent; of an answer in one body, when its first id was here."""
    first: dict[str, float] = {}
    for entry in entries:
        first.setdefault(entry.what, entry.ms)
    return first.get("first text", first.get("first commit"))


def _status(seen: set[str]) -> str:
    if "failed" in seen:
        return "failed"
    if "sent" in seen:
        return "finished"
    return "cancelled" if "cancelled" in seen else "running"


def _since(timeline: Timeline, now: float) -> float:
    return max(0.0, now - timeline.received_s) * 1e3
