"""The steps of a core as a trace that ui.perfetto.dev opens: Chrome's Trace Event Format. Sans-IO.

    engine      a slice a step, with what it ran, and one for handing its results over
    request     a lane for each request at a time: queued, prefill, decode, and what befell it
    counters    KV in use, sequences that run and wait

Times are microseconds on the core's monotonic clock, which all processes of a machine share: traces
of its cores can be laid over each other. Requests are named by the handles that the core gave them.
The size is bounded by the log's two limits. Format: Google's "Trace Event Format", with the phases
M (names), X (a slice), C (a counter), and b, n, e (begin, instant, end of a slice of a lane).
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from firstlight.core_node.step_log import StepRecord
from firstlight.shared.engine.plan import Turn, TurnEvent

ENGINE_THREAD = 1
QUEUED, PREFILL, DECODE = "queued", "prefill", "decode"

Event = dict[str, Any]


def trace_events(records: Sequence[StepRecord], *, process: str, pid: int) -> list[Event]:
    """All events in order of time, names first."""
    lanes = _Lanes(pid)
    events: list[Event] = []
    for record in records:
        events += _engine(record, pid)
        lanes.take(record)
    if records:
        lanes.close(records[-1].handed_s)
    events += lanes.events
    events.sort(key=lambda event: float(event["ts"]))  # stable: a lane's own order stays
    return [
        _name("process_name", process, pid),
        _name("thread_name", "engine", pid),
        *events,
    ]


def document(events: Iterable[Event]) -> bytes:
    """The file. An event at a time, so that other threads get their turn between two of them."""
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'.encode()


def _name(what: str, name: str, pid: int) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": ENGINE_THREAD, "args": {"name": name}}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _event(ph: str, name: str, at_s: float, pid: int, **more: Any) -> Event:
    return {"ph": ph, "name": name, "ts": _us(at_s), "pid": pid, "tid": ENGINE_THREAD, **more}


def _slice(name: str, begin_s: float, end_s: float, pid: int, args: dict[str, Any]) -> Event:
    dur = max(0.0, round(_us(end_s) - _us(begin_s), 3))
    return _event("X", name, begin_s, pid, cat="step", dur=dur, args=args)


def _engine(record: StepRecord, pid: int) -> list[Event]:
    """The engine's slices, and the counters as they were after the step."""
    if not record.ran:
        return []
    counts = {"running": record.running, "waiting": record.waiting}
    return [
        _slice(_kind(record), record.began_s, record.ended_s, pid, _what(record)),
        _slice("hand over", record.ended_s, record.handed_s, pid, {}),
        _event("C", "sequences", record.ended_s, pid, args=counts),
        _event("C", "KV", record.ended_s, pid, args={"used share": record.kv_used_share}),
    ]


def _kind(record: StepRecord) -> str:
    decoding = [one.decodes for one in record.ran]
    if all(decoding):
        return DECODE
    return f"{PREFILL} + {DECODE}" if any(decoding) else PREFILL


def _what(record: StepRecord) -> dict[str, Any]:
    brought = {one.request: one for one in record.committed}
    sequences = [
        {
            "request": ran.request,
            "tokens": ran.tokens,
            "drafted": ran.drafted,
            "accepted": brought[ran.request].accepted if ran.request in brought else 0,
            "committed": brought[ran.request].ids if ran.request in brought else 0,
        }
        for ran in record.ran
    ]
    return {
        "rows": sum(ran.tokens + ran.drafted for ran in record.ran),
        "prefill tokens": sum(ran.tokens for ran in record.ran if not ran.decodes),
        "decode rows": sum(ran.decodes for ran in record.ran),
        "drafted rows": sum(ran.drafted for ran in record.ran),
        "accepted": sum(one.accepted for one in record.committed),
        "admitted": sum(event.turn is Turn.ADMITTED for event in record.turns),
        "preempted": sum(event.turn is Turn.PREEMPTED for event in record.turns),
        "sequences": sequences,
    }


class _Lanes:
    """Follows each request from step to step. One that the log only knows from its middle on
    begins where it is first seen.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._numbers: dict[str, str] = {}
        """Of the requests that are open; a lane goes by a number, since readers take it for hex."""
        self._phases: dict[str, str] = {}
        self._made = 0
        self.events: list[Event] = []

    def take(self, record: StepRecord) -> None:
        for request, at_s in record.arrived:
            self._enter(request, QUEUED, at_s)
        for event in record.turns:
            self._turn(event, record.began_s)
        for ran in record.ran:
            phase = self._phases.get(ran.request)
            if phase is None or phase == QUEUED:
                goes_on = phase is None and ran.decodes
                self._enter(ran.request, DECODE if goes_on else PREFILL, record.began_s)
        ended = dict(record.ended)
        for one in record.committed:
            if one.ids and one.request not in ended:
                self._enter(one.request, DECODE, record.ended_s)
        for request, how in ended.items():
            self._open(request, record.began_s)
            self._end(request, record.ended_s, how)

    def close(self, at_s: float) -> None:
        for request in list(self._numbers):
            self._end(request, at_s, "goes on")

    def _turn(self, event: TurnEvent, at_s: float) -> None:
        if event.turn is Turn.PREEMPTED:
            self._enter(event.request, QUEUED, at_s)
        elif event.request not in self._numbers:
            stands = event.turn in (Turn.STALLED, Turn.RESUMED)
            self._enter(event.request, DECODE if stands else QUEUED, at_s)
        args = {"known": event.known, "tokens": event.tokens}
        self._add("n", str(event.turn), event.request, at_s, args)

    def _enter(self, request: str, phase: str, at_s: float) -> None:
        self._open(request, at_s)
        if (before := self._phases.get(request)) == phase:
            return
        if before is not None:
            self._add("e", before, request, at_s)
        self._phases[request] = phase
        self._add("b", phase, request, at_s)

    def _open(self, request: str, at_s: float) -> None:
        if request not in self._numbers:
            self._made += 1
            self._numbers[request] = f"0x{self._made:x}"
            self._add("b", "request", request, at_s, {"request": request})

    def _end(self, request: str, at_s: float, how: str) -> None:
        if (phase := self._phases.pop(request, None)) is not None:
            self._add("e", phase, request, at_s)
        self._add("e", "request", request, at_s, {"ended": how})
        del self._numbers[request]

    def _add(
        self, ph: str, name: str, request: str, at_s: float, args: dict[str, Any] | None = None
    ) -> None:
        lane = {"local": self._numbers[request]}
        event = _event(ph, name, at_s, self._pid, cat="request", id2=lane, args=args or {})
        self.events.append(event)
