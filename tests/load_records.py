"""Records as a run would leave them."""

from array import array

from firstlight.infra.bench.load.figures import Span
from firstlight.infra.bench.load.records import Record
from firstlight.infra.bench.load.run import Run


def answered(
    index: int = 0,
    *,
    planned_s: float = 0.0,
    slip_s: float = 0.0,
    first_s: float = 0.1,
    gap_s: float = 0.02,
    tokens: int = 5,
    connect_s: float | None = None,
) -> Record:
    sent_s = planned_s + slip_s
    record = Record(index, planned_s, tokens_in=100, cold=connect_s is not None)
    record.sent_s, record.status = sent_s, 200
    record.connected_s = None if connect_s is None else sent_s + connect_s
    record.events_s = array("d", [sent_s + first_s + n * gap_s for n in range(tokens)])
    record.tokens_out = tokens
    record.ended_s = record.events_s[-1] + 0.01
    return record


def missed(reason: str, index: int = 0, said: str = "why") -> Record:
    record = Record(index, 0.0, tokens_in=100, cold=False)
    record.sent_s = 0.0
    record.missed(reason, said, 1.0)
    return record


def span(duration_s: float = 10.0, **told: float) -> Span:
    return Span(
        planned=int(told.get("planned", 10)),
        duration_s=duration_s,
        cpu_s=told.get("cpu_s", 1.0),
        cpu_share_max=told.get("cpu_share_max", 0.2),
        outstanding_most=3,
        cut_short=None,
        shareable_tokens=int(told.get("shareable_tokens", 0)),
    )


def run(records: list[Record], cut_short: str | None = None, begun_s: float = 0.0) -> Run:
    return Run(
        records=records,
        begun_s=begun_s,
        ended_s=max((r.ended_s or 0.0 for r in records), default=begun_s),
        cpu_shares=[0.1],
        cpu_s=0.5,
        planned=len(records),
        cut_short=cut_short,
    )
