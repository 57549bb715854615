"""I1, I2, I7: what became of the tokens. Pure functions over evidence."""

from collections import defaultdict
from collections.abc import Iterator

from firstlight.infra.judge.evidence import ENDS, Evidence, Said, Telling
from firstlight.infra.judge.verdict import Violation, violation
from firstlight.shared.history import What

UNKNOWN_CLASS = "?"


def no_token_lost_or_doubled(evidence: Evidence) -> Iterator[Violation]:
    """I1: from core to edge to client every token once, in order, and the same one."""
    for telling in evidence.edge_tellings:
        if telling.process.whole:
            yield from _edge(telling)
            yield from _against_cores(telling, evidence)
    for tellings in evidence.core_tellings.values():
        for telling in tellings:
            if telling.process.whole:
                yield from _commits(telling, telling.of(What.OPENED)[0], "I1")
    yield from _clients(evidence)


def _commits(telling: Telling, first: Said, invariant: str) -> Iterator[Violation]:
    """Commits follow each other without a gap, from what was known at `first`."""
    position = first.offset
    for one in telling.of(What.COMMITTED):
        yield from _step(telling, one, position, "committed", invariant)
        position = max(position, one.offset)


def _step(
    telling: Telling, one: Said, position: int, verb: str, invariant: str
) -> Iterator[Violation]:
    start = one.offset - one.number("count")
    if start < position:
        doubled = min(position, one.offset) - start
        what = f"doubled: ids {start} to {start + doubled - 1} were {verb} twice"
        yield violation(invariant, what, telling.process, one)
    elif start > position:
        what = f"lost: ids {position} to {start - 1} were never {verb}"
        yield violation(invariant, what, telling.process, one)


def _edge(telling: Telling) -> Iterator[Violation]:
    accepted = telling.of(What.ACCEPTED)[0]
    yield from _commits(telling, accepted, "I1")
    known = {accepted.offset: accepted.line.hash}
    position, told, end = accepted.offset, 0, None
    for one in telling.said:
        what, process = one.line.what, telling.process
        if what is What.OPENED and (one.offset, one.line.hash) != (position, known.get(position)):
            text = f"lost: handed to a core with {one.offset} of {position} ids, or with others"
            yield violation("I1", text, process, one)
        elif what is What.COMMITTED:
            known[one.offset] = one.line.hash
            position = max(position, one.offset)
        elif what is What.RESUMED:
            told = one.offset
        elif what is What.SENT:
            yield from _step(telling, one, told, "sent", "I1")
            yield from _sent(telling, one, position, known)
            told = max(told, one.offset)
        elif what is What.ENDED:
            end = one
        elif what is What.DELIVERED and end is not None and told != end.offset:
            how = "lost" if told < end.offset else "doubled"
            text = f"{how}: {told} ids were sent of an answer of {end.offset}"
            yield violation("I1", text, process, one)


def _sent(telling: Telling, one: Said, position: int, known: dict[int, str]) -> Iterator[Violation]:
    if one.offset > position:
        text = f"doubled: {one.offset} ids were sent, but only {position} committed"
        yield violation("I1", text, telling.process, one)
    elif known.get(one.offset, one.line.hash) != one.line.hash:
        text = "changed: the ids that were sent are not those that were committed"
        yield violation("I1", text, telling.process, one)


def _against_cores(telling: Telling, evidence: Evidence) -> Iterator[Violation]:
    for one in telling.of(What.COMMITTED):
        for core in evidence.core_tellings.get((telling.stream, one.epoch), ()):
            if core.process.node != one.fact("core"):
                continue
            committed = {said.offset: said.line.hash for said in core.of(What.COMMITTED)}
            if committed.get(one.offset, one.line.hash) != one.line.hash:
                text = f"changed: {core.process.node} committed other ids up to here"
                yield violation("I1", text, telling.process, one)


def _clients(evidence: Evidence) -> Iterator[Violation]:
    """What a client has is what edges sent of the same question, and all of it at the end."""
    asked = {one.stream: _asked(one) for one in evidence.edge_tellings}
    sent: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    ends: dict[str, set[int]] = defaultdict(set)
    for telling in evidence.edge_tellings:
        key = _asked(telling)
        for one in telling.of(What.SENT):
            sent[key][one.offset].add(one.fact("answer"))
        ends[key] |= {one.offset for one in telling.of(What.ENDED) if one.fact("finish")}
    for process in evidence.of_role("client"):
        for telling in process.tellings:
            key = ""
            for one in telling.of(What.RECEIVED, What.ENDED):
                key = asked.get(one.fact("served"), key)
                edges = sent.get(key, {}).get(one.offset, set())
                if edges and one.line.hash not in edges:
                    text = "changed: the client has other ids than it was sent"
                    yield violation("I1", text, process, one)
                    break
                if one.fact("finish") and ends.get(key) and one.offset not in ends[key]:
                    text = f"lost or doubled: the client's answer has {one.offset} ids"
                    yield violation("I1", text, process, one)


def _asked(telling: Telling) -> str:
    return telling.of(What.ACCEPTED)[0].fact("asked")


def one_text_in_one_class(evidence: Evidence) -> Iterator[Violation]:
    """I2: a question with a seed has one text in one numerics class, however it came to be.

    Over epochs, cores, edges and repeats. Ids that a client brought back are its own word: what is
    computed behind them is compared with what others computed behind the same ids.
    """
    seen: dict[tuple[str, tuple[str, ...], int], tuple[str, str]] = {}
    for telling in evidence.edge_tellings:
        accepted = telling.of(What.ACCEPTED)[0]
        brought = f"{accepted.offset} {accepted.line.hash}" if accepted.offset else ""
        classes: tuple[str, ...] = (brought,)
        for one in telling.of(What.COMMITTED):
            now = one.fact("numerics_class") or UNKNOWN_CLASS
            if classes[-1] != now:
                classes = (*classes, now)
            place = (accepted.fact("asked"), classes, one.offset)
            before, stream = seen.setdefault(place, (one.line.hash, telling.stream))
            if before != one.line.hash:
                text = f"forked: other ids than stream {stream} had in class {now}"
                yield violation("I2", text, telling.process, one)
                break
    for telling in evidence.edge_tellings:
        yield from _resumed_as_told(telling, seen)


def _resumed_as_told(
    telling: Telling, seen: dict[tuple[str, tuple[str, ...], int], tuple[str, str]]
) -> Iterator[Violation]:
    """Behind ids that are known to be right, a stream that goes on must end in the same text."""
    accepted = telling.of(What.ACCEPTED)[0]
    commits = telling.of(What.COMMITTED)
    if not accepted.offset or not commits:
        return
    classes = {one.fact("numerics_class") for one in commits}
    if len(classes) != 1:
        return
    whole = ("", classes.pop())
    start = seen.get((accepted.fact("asked"), whole, accepted.offset))
    if start is None or start[0] != accepted.line.hash:
        return
    for one in commits:
        before = seen.get((accepted.fact("asked"), whole, one.offset))
        if before is not None and before[0] != one.line.hash:
            text = f"forked: after it was resumed, other ids than stream {before[1]} had"
            yield violation("I2", text, telling.process, one)
            return


def one_owner(evidence: Evidence) -> Iterator[Violation]:
    """I7: only the latest epoch of a stream adds to it, and only one core has that epoch."""
    for telling in evidence.edge_tellings:
        if telling.process.whole:
            yield from _owned(telling)
    for (stream, epoch), tellings in evidence.core_tellings.items():
        by_edge: dict[str, str] = {}
        for core in tellings:
            edge, node = core.of(What.OPENED)[0].fact("edge"), core.process.node
            if by_edge.setdefault(edge, node) != node and core.of(What.COMMITTED):
                text = f"two owners: {by_edge[edge]} and {node} had epoch {epoch} of {stream}"
                yield violation("I7", text, core.process, core.of(What.OPENED)[0])


def _owned(telling: Telling) -> Iterator[Violation]:
    epoch, core, owned = 0, "", False
    for one in telling.said:
        what = one.line.what
        if what is What.OPENED:
            if one.epoch <= epoch:
                text = f"epoch {one.epoch} was given out after epoch {epoch}"
                yield violation("I7", text, telling.process, one)
            epoch, core, owned = one.epoch, one.fact("core"), True
        elif what is What.COMMITTED:
            if (one.epoch, one.fact("core")) != (epoch, core) or not owned:
                owner = f"{core} owned the stream as epoch {epoch}" if owned else "nobody owned it"
                text = f"a zombie's commit was accepted: {one.fact('core')}, epoch {one.epoch}"
                yield violation("I7", f"{text}, while {owner}", telling.process, one)
        elif what in (What.MOVED, What.LEFT) or what in ENDS:
            owned = False
