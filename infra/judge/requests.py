"""I4, I5, I8, I9 and poison: how requests end, and what their ends cost. Pure functions."""

from collections.abc import Iterator

from firstlight.infra.judge.evidence import ENDS, Evidence, Process, Said, Telling
from firstlight.infra.judge.run_file import ENDING
from firstlight.infra.judge.verdict import Violation, violation
from firstlight.shared.errors import ErrorKind
from firstlight.shared.history import What
from firstlight.shared.retry import (
    BUDGET_PER_S,
    BUDGET_SHARE,
    MOVES_MAX,
    MOVES_WINDOW_S,
    STRIKES_MAX,
    TRIES_MAX,
    Why,
)

AFTER_END = frozenset({What.SENT, What.DELIVERED, What.RESUMED, What.FENCED, *ENDS})
"""What may still be said of a stream on an edge that has ended: it is told, or told again."""
LOST = "lost"
SLACK_S = 0.5
"""A core's last line is at most so much older than its death."""


def one_end_each(evidence: Evidence) -> Iterator[Violation]:
    """I4: whatever was accepted ends exactly once: an answer, one clear error, or cancelled."""
    for telling in evidence.edge_tellings:
        if telling.process.whole:
            yield from _ended(telling, telling.of(What.ACCEPTED)[0], ENDS)
            yield from _quiet(telling)
    for tellings in evidence.core_tellings.values():
        for telling in tellings:
            if telling.process.whole:
                opened = telling.of(What.OPENED)[0]
                yield from _ended(telling, opened, ENDS | {What.FENCED})
    for process in evidence.of_role("client"):
        for telling in process.tellings:
            asked = telling.of(What.ASKED)
            if asked and process.whole:
                yield from _ended(telling, asked[0], ENDS)


def _ended(telling: Telling, first: Said, ends: frozenset[What]) -> Iterator[Violation]:
    found = telling.of(*ends)
    if len(found) > 1:
        text = f"{len(found)} ends, the first on line {found[0].place}"
        yield violation("I4", text, telling.process, found[1])
    elif not found and telling.process.stopped:
        yield violation("I4", "a request without an end", telling.process, first)


def _quiet(telling: Telling) -> Iterator[Violation]:
    ended = False
    for one in telling.said:
        if ended and one.line.what not in AFTER_END:
            text = f"{one.line.what} after its end"
            yield violation("I4", text, telling.process, one)
            return
        ended |= one.line.what in ENDS


def errors_are_clear(evidence: Evidence) -> Iterator[Violation]:
    """I5: an error says what it is and whether to try again; none is a bug of ours."""
    for process in evidence.processes:
        for one in process.said:
            what = one.line.what
            failed = what is What.REFUSED or (what is What.ENDED and "finish" not in one.line.facts)
            if not failed:
                continue
            kind, retryable = one.fact("kind"), one.line.facts.get("retryable")
            if kind not in ErrorKind.__members__.values() or not isinstance(retryable, bool):
                text = f"an error that is not clear: kind {kind!r}, retryable {retryable!r}"
                yield violation("I5", text, process, one)
            elif what is What.REFUSED and kind == ErrorKind.INTERNAL and process.role == "edge":
                yield violation("I5", "a request failed of a bug", process, one)


def work_is_bounded(evidence: Evidence) -> Iterator[Violation]:
    """I8: at most so many moves a minute and tries in a row, and no storm over a whole edge."""
    for process in evidence.of_role("edge"):
        if not process.whole:
            continue
        retries: list[Said] = []
        tellings = [telling for telling in process.tellings if telling.of(What.ACCEPTED)]
        for telling in tellings:
            yield from _moves(telling)
            yield from _tries(telling)
            moved = telling.of(What.MOVED)
            retries += [one for one in moved if one.fact("why") == Why.RETRY]
        retries.sort(key=lambda one: one.place)
        took_s = process.last.t - process.began.t
        budget = BUDGET_SHARE * len(tellings) + BUDGET_PER_S * (took_s + 1)
        if len(retries) > budget:
            text = f"a storm: {len(retries)} retries of {len(tellings)} requests in {took_s:.0f} s"
            yield violation("I8", text, process, retries[int(budget)])


def _moves(telling: Telling) -> Iterator[Violation]:
    moves = [one for one in telling.of(What.MOVED) if one.fact("why") == Why.MOVE]
    for first, last in zip(moves, moves[MOVES_MAX:], strict=False):
        if last.t - first.t < MOVES_WINDOW_S:
            text = f"{MOVES_MAX + 1} moves within {last.t - first.t:.1f} s, {MOVES_MAX} may be"
            yield violation("I8", text, telling.process, last)
            return


def _tries(telling: Telling) -> Iterator[Violation]:
    tries = 1
    for one in telling.of(What.MOVED, What.COMMITTED):
        retried = one.line.what is What.MOVED and one.fact("why") == Why.RETRY
        tries = tries + 1 if retried else 1 if one.line.what is What.COMMITTED else tries
        if tries > TRIES_MAX:
            text = f"{tries} tries in a row, {TRIES_MAX} may be"
            yield violation("I8", text, telling.process, one)
            return


def recovered(evidence: Evidence) -> Iterator[Violation]:
    """I9: after every fault requests succeed again by themselves; no process dies of none."""
    tried = [(one, one.of(What.ACCEPTED)[0]) for one in evidence.edge_tellings]
    for fault in evidence.run.faults:
        due = fault.over + fault.within_s
        late = [pair for pair in tried if fault.over < pair[1].t <= due]
        well = any(fault.t <= t <= due for t in _successes(evidence))
        if late and not well:
            telling, said = late[0]
            text = f"nothing succeeded within {fault.within_s:g} s of {fault.name}"
            yield violation("I9", text, telling.process, said)
    for process in evidence.processes:
        yield from _died(process, evidence)


def not_tried(evidence: Evidence) -> Iterator[str]:
    """Faults of which no history can show that the mesh recovered: nobody asked it afterwards."""
    starts = [telling.of(What.ACCEPTED)[0].t for telling in evidence.edge_tellings]
    times = [*starts, *_successes(evidence)]
    for fault in evidence.run.faults:
        if not any(t >= fault.t for t in times):
            yield f"nothing was asked after {fault.name}"


def _successes(evidence: Evidence) -> list[float]:
    """When streams ended well."""
    ends = (one for telling in evidence.edge_tellings for one in telling.of(What.ENDED))
    return [one.t for one in ends if one.fact("finish")]


def _died(process: Process, evidence: Evidence) -> Iterator[Violation]:
    if evidence.explained(process):
        return
    failed = process.last.fact("failed")
    if process.stopped and failed:
        yield violation("I9", f"{process.node} ended by itself: {failed}", process, process.last)
    elif not process.stopped and evidence.run.ended:
        yield violation("I9", f"{process.node} died of no fault of the run", process, process.last)


def poison_has_a_cause(evidence: Evidence) -> Iterator[Violation]:
    """A stream is called poison only if two cores died under it before they committed a token."""
    for telling in evidence.edge_tellings:
        said = telling.of(What.POISON)
        said += [one for one in telling.of(What.ENDED) if one.fact("code") == Why.POISON]
        if said and telling.process.whole:
            strikes = sum(_strike(epoch, evidence) for epoch in _epochs(telling))
            if strikes < STRIKES_MAX:
                text = f"called poison, but {strikes} cores died under it before a token"
                yield violation("poison", text, telling.process, said[0])


def _epochs(telling: Telling) -> Iterator[list[Said]]:
    """What was said in each epoch, from its `OPENED` on."""
    epoch: list[Said] = []
    for one in telling.said:
        if one.line.what is What.OPENED:
            if epoch:
                yield epoch
            epoch = [one]
        elif epoch:
            epoch.append(one)
    if epoch:
        yield epoch


def _strike(epoch: list[Said], evidence: Evidence) -> bool:
    """Whether the core of an epoch died before it committed, by others' word as well."""
    opened, left = epoch[0], [one for one in epoch if one.line.what in (What.MOVED, What.LEFT)]
    committed = any(one.line.what is What.COMMITTED for one in epoch)
    if committed or not left or left[0].fact("how") != LOST:
        return False
    core, since, until = opened.fact("core"), opened.t - SLACK_S, left[0].t + SLACK_S
    if evidence.run.struck(core, ENDING, since, until):
        return True
    if evidence.run.struck(core, {"freeze"}, since, until):  # its last line is no end
        return False
    ends = [process.last.t for process in evidence.of_role("core") if process.node == core]
    return any(since <= end <= until for end in ends)
