"""Which drafted ids get a row in a step: those that pay, and only from what the plan left over.

Called after decodes and prefill chunks are planned, so a draft never delays either. A drafted row
is worth the probability that it and all before it are right; the step-time table has its price.
Rows are taken best first, as many as make the step yield the most ids a ms, and no more than the
gaps of others allow: a step that prefills has no time for any. None is a fine answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from firstlight.shared.blocks import blocks_for
from firstlight.shared.drafting.controller import Controller
from firstlight.shared.drafting.steptimes import StepTimes
from firstlight.shared.engine.kv.manager import KvManager
from firstlight.shared.engine.plan import EngineConfig
from firstlight.shared.engine.scheduler import Work


@dataclass(frozen=True, slots=True)
class Draft:
    """Candidate ids for the next step of a sequence, and who offered each."""

    start: int
    ids: tuple[int, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """A draft cut to what limits allow, with the odds of each id."""

    work: Work
    draft: Draft
    odds: tuple[float, ...]
    probe: bool
    """Rows to be tried although they are not expected to pay."""


def allot(
    works: list[Work],
    drafts: Mapping[str, Draft],
    controller: Controller,
    times: StepTimes,
    kv: KvManager,
    config: EngineConfig,
) -> None:
    """Add drafted rows to `works`, within `step_tokens_max`, `hint_ids_max` and the step's time."""
    mode, most = config.speculation, config.hint_ids_max
    rows = sum(work.rows for work in works)
    rows_left = config.step_tokens_max - rows
    if mode == "off" or not drafts or rows_left <= 0:
        return
    if mode == "auto" and any(work.count > 1 or not work.samples for work in works):
        return  # prefill fills the time that this step may take
    sampling = [work for work in works if work.samples]
    keep = _keep_all if mode == "always" else _keeper(controller, times, rows, len(sampling), most)
    offers = [
        offer
        for work in sampling
        if (offer := _offer(work, drafts.get(work.sequence.id), controller, most, keep)) is not None
    ]
    if mode == "always":
        counts = [len(offer.draft.ids) for offer in offers]
    else:
        alone_ms = times.ms(rows)
        limit_ms = alone_ms + config.spare_ms(alone_ms)
        counts = _best_counts(offers, times, rows, len(sampling), limit_ms)
    for offer, count in zip(offers, counts, strict=True):
        rows_left -= _place(offer, min(count, rows_left), kv)


Keep = Callable[[str, str], tuple[bool, bool]]
"""(request, source) → (may have rows, as a probe)."""


def _keep_all(request: str, source: str) -> tuple[bool, bool]:
    return True, False


def _keeper(controller: Controller, times: StepTimes, rows: int, sequences: int, most: int) -> Keep:
    def keep(request: str, source: str) -> tuple[bool, bool]:
        if controller.permits(request, source, times, rows=rows, sequences=sequences, most=most):
            return True, False
        return controller.probes(request), True

    return keep


def _offer(
    work: Work, draft: Draft | None, controller: Controller, most: int, keep: Keep
) -> Offer | None:
    sequence = work.sequence
    if draft is None or draft.start != sequence.known:
        return None
    length = min(len(draft.ids), most, sequence.draft_max)
    verdicts = {source: keep(sequence.id, source) for source in sorted(set(draft.sources[:length]))}
    for place, source in enumerate(draft.sources[:length]):
        if not verdicts[source][0]:
            length = place
            break
    if length == 0:
        return None
    probe = verdicts[draft.sources[0]][1]
    cut = Draft(draft.start, draft.ids[:length], draft.sources[:length])
    return Offer(work, cut, controller.survival(sequence.id, cut.sources), probe)


def _best_counts(
    offers: list[Offer], times: StepTimes, rows: int, sequences: int, limit_ms: float
) -> list[int]:
    """Rows an offer, so that a step of up to `limit_ms` yields the most ids a ms; a probe gets one
    row at least."""
    counts = [1 if offer.probe else 0 for offer in offers]
    ranked = sorted(
        (-odds, index, place)
        for index, offer in enumerate(offers)
        for place, odds in enumerate(offer.odds)
        if place >= counts[index]
    )
    rows += sum(counts)
    expected = float(sequences) + sum(
        offer.odds[0] for offer, count in zip(offers, counts, strict=True) if count
    )
    best, taken = expected / times.ms(rows), 0
    for extra, (negative, _, _) in enumerate(ranked, start=1):
        expected -= negative
        if times.ms(rows + extra) > limit_ms:
            break
        if (rate := expected / times.ms(rows + extra)) > best:
            best, taken = rate, extra
    for _, index, _ in ranked[:taken]:
        counts[index] += 1
    return counts


def _place(offer: Offer, count: int, kv: KvManager) -> int:
    """Give an offer its rows, as far as free blocks hold them; returns how many."""
    sequence = offer.work.sequence
    while count and blocks_for(sequence.known + count) - len(sequence.table) > kv.free:
        count -= 1
    if count and kv.grow(sequence.table, sequence.known + count):
        offer.work.drafted = offer.draft.ids[:count]
        offer.work.sources = offer.draft.sources[:count]
        return count
    return 0
