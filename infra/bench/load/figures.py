"""Figures of a run, out of its records. Sans-IO, and the shape of what `--json` prints.

TTFT is from sending to the first text, so it holds the connecting of a cold request; TPOT is per
token after the first; ITL is each gap between two pieces of text (a piece may hold several tokens);
E2E is to the end of the stream. Percentiles are interpolated linearly. A request that was refused,
failed, timed out or was not sent misses the SLA.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from firstlight.infra.bench.load.records import Record

SLIP_P99_MS_MAX = 10.0
"""Beyond this the schedule was not kept, and the run says so."""
CPU_SHARE_MAX = 0.8
"""Of one core, in any second: beyond this the client measures itself."""
STRAY_TOKENS_MAX = 64
"""A prompt may find so many in a cache by chance, or by a chat's template."""
DIGITS = 3
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Sla:
    """What an answer must keep to count as good. None asks nothing."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def holds(self, record: Record) -> bool:
        """Whether this request was answered in time. One token has no TPOT to miss."""
        if not record.answered:
            return False
        timing = record.timing
        in_time = self.ttft_ms is None or timing.ttft_ms <= self.ttft_ms
        return in_time and (self.tpot_ms is None or (timing.tpot_ms or 0.0) <= self.tpot_ms)


@dataclass(frozen=True, slots=True)
class Spread:
    """How values are spread."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Goodput:
    """Answers that kept the SLA; `share` is of all that were due and not cut off by us."""

    sla: Sla
    met: int
    share: float | None
    per_s: float | None


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """What the client itself did to the figures."""

    cpu_share: float | None
    """Of one core, over the whole run."""
    cpu_share_max: float | None
    """In the busiest second."""
    slip_ms: Spread | None
    """Sent minus planned."""
    slipped: bool
    """The p99 of `slip_ms` is above `SLIP_P99_MS_MAX`: the load was not the one asked for."""
    busy: bool
    """`cpu_share_max` is above `CPU_SHARE_MAX`: latencies may be the client's own."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Where each request went: due = answered + missed + unfinished."""

    planned: int
    due: int
    sent: int
    answered: int
    missed: int
    unfinished: int
    """Out when the run was cut short: neither answered nor missed."""
    outstanding_most: int


@dataclass(frozen=True, slots=True)
class Figures:
    """All of a run."""

    duration_s: float
    """From the first moment of the schedule to the end of the last answer."""
    cut_short: str | None
    counts: Counts
    misses: dict[str, int]
    said: dict[str, str]
    """Of each reason, the first words."""
    ttft_ms: Spread | None
    ttft_warm_ms: Spread | None
    ttft_cold_ms: Spread | None
    """Of those that waited for a connection: connecting counts."""
    connect_ms: Spread | None
    """Of those: until the connection stood."""
    tpot_ms: Spread | None
    itl_ms: Spread | None
    e2e_ms: Spread | None
    requests_per_s: float | None
    """Answered."""
    tokens_in: int
    tokens_cached: int | None
    """Of `tokens_in`, what servers say they had cached; None if none says so."""
    known_before: bool
    """More was cached than this run could have left there: the server was asked the same before."""
    tokens_out: int
    tokens_in_per_s: float | None
    tokens_out_per_s: float | None
    prompts_miscounted: int
    """Answers whose server counted other prompt tokens than planned; its vocabulary differs, or a
    chat's template adds some."""
    goodput: Goodput
    client: ClientFigures


@dataclass(frozen=True, slots=True)
class Span:
    """What a run says beside its records; of several runs, together."""

    planned: int
    duration_s: float
    cpu_s: float
    cpu_share_max: float | None
    outstanding_most: int
    cut_short: str | None
    shareable_tokens: int


def figures(records: Sequence[Record], span: Span, sla: Sla) -> Figures:
    """Everything that is printed of a run."""
    answered = [record for record in records if record.answered]
    missed = [record for record in records if record.miss is not None]
    timings = [record.timing for record in answered]
    tokens_in = sum(record.tokens_in_told or record.tokens_in for record in answered)
    tokens_out = sum(record.tokens_out for record in answered)
    cached = _cached(answered)
    told = [r for r in answered if r.tokens_in_told not in (None, r.tokens_in)]
    return Figures(
        duration_s=round(span.duration_s, DIGITS),
        cut_short=span.cut_short,
        counts=_counts(records, span, len(answered), len(missed)),
        misses=dict(Counter(record.miss or "" for record in missed).most_common()),
        said={record.miss or "": record.said for record in reversed(missed)},
        ttft_ms=spread(timing.ttft_ms for timing in timings),
        ttft_warm_ms=spread(r.timing.ttft_ms for r in answered if not r.cold),
        ttft_cold_ms=spread(r.timing.ttft_ms for r in answered if r.cold),
        connect_ms=spread(_connect_ms(record) for record in answered),
        tpot_ms=spread(timing.tpot_ms for timing in timings),
        itl_ms=_spread(gaps_ms(answered)),
        e2e_ms=spread(record.e2e_ms for record in answered),
        requests_per_s=_per_s(len(answered), span.duration_s),
        tokens_in=tokens_in,
        tokens_cached=cached,
        known_before=(cached or 0) > span.shareable_tokens + STRAY_TOKENS_MAX * len(answered),
        tokens_out=tokens_out,
        tokens_in_per_s=_per_s(tokens_in, span.duration_s),
        tokens_out_per_s=_per_s(tokens_out, span.duration_s),
        prompts_miscounted=len(told),
        goodput=_goodput(records, span, sla),
        client=_client(records, span),
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of the values that are there; None if none is."""
    return _spread(np.array([v for v in values if v is not None], dtype=np.float64))


def gaps_ms(answered: Iterable[Record]) -> Floats:
    """All gaps between two pieces of text."""
    gaps = [np.diff(np.frombuffer(record.events_s)) for record in answered]
    return np.concatenate([np.zeros(0), *gaps]) * 1e3


def _spread(found: Floats) -> Spread | None:
    if not found.size:
        return None
    told = [found.mean(), *np.percentile(found, (50, 90, 95, 99)), found.max()]
    return Spread(int(found.size), *(round(float(value), DIGITS) for value in told))


def _counts(records: Sequence[Record], span: Span, answered: int, missed: int) -> Counts:
    return Counts(
        planned=span.planned,
        due=len(records),
        sent=sum(record.sent_s is not None for record in records),
        answered=answered,
        missed=missed,
        unfinished=len(records) - answered - missed,
        outstanding_most=span.outstanding_most,
    )


def _goodput(records: Sequence[Record], span: Span, sla: Sla) -> Goodput:
    ended = [record for record in records if record.ended_s is not None]
    met = sum(sla.holds(record) for record in ended)
    share = round(met / len(ended), 5) if ended else None
    return Goodput(sla, met, share, _per_s(met, span.duration_s))


def _client(records: Sequence[Record], span: Span) -> ClientFigures:
    slips = spread(record.slip_ms for record in records)
    share = span.cpu_s / span.duration_s if span.duration_s > 0 else None
    return ClientFigures(
        cpu_share=None if share is None else round(share, DIGITS),
        cpu_share_max=None if span.cpu_share_max is None else round(span.cpu_share_max, DIGITS),
        slip_ms=slips,
        slipped=slips is not None and slips.p99 > SLIP_P99_MS_MAX,
        busy=max(share or 0.0, span.cpu_share_max or 0.0) > CPU_SHARE_MAX,
    )


def _cached(answered: Sequence[Record]) -> int | None:
    told = [r.tokens_cached for r in answered if r.tokens_cached is not None]
    return sum(told) if told else None


def _connect_ms(record: Record) -> float | None:
    if record.connected_s is None or record.sent_s is None:
        return None
    return (record.connected_s - record.sent_s) * 1e3


def _per_s(count: float, duration_s: float) -> float | None:
    return round(count / duration_s, DIGITS) if duration_s > 0 else None
