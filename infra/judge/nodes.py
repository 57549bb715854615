"""I3 and I6: what tenants could see of each other, and whether nodes are as empty as before.

Pure functions over evidence.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from firstlight.infra.judge.evidence import Evidence, Process, Said
from firstlight.infra.judge.verdict import Violation, violation
from firstlight.shared.history import What

TIERS = ("", "host_")
RSS_GROWTH_MAX = 1.5
RSS_SLACK_BYTES = 128 << 20
FILES_SLACK = 64
BASELINE_SAMPLES = 4
"""The largest of so many first samples is what a node takes when it idles."""


def tenants_are_apart(evidence: Evidence) -> Iterator[Violation]:
    """I3: no block hash under two salts, no stream under two, no hit on what only others asked."""
    salts: dict[str, str] = {}
    streams: dict[str, str] = {}
    for process in evidence.processes:
        for one in process.said:
            salt = one.fact("salt")
            if not salt:
                continue
            block, stream = one.fact("block"), one.line.stream
            if block and salts.setdefault(block, salt) != salt:
                yield violation("I3", "one block hash under two salts", process, one)
            if streams.setdefault(stream, salt) != salt:
                yield violation("I3", "one stream under two salts", process, one)
    yield from _hits(evidence)


def _hits(evidence: Evidence) -> Iterator[Violation]:
    """A prefix that was cached must have been asked for under the same salt before."""
    if any(_kept(process) for process in evidence.of_role("core")):
        return  # what was there before the run cannot be told from what another tenant brought
    asked: dict[str, list[Said]] = defaultdict(list)
    for process in evidence.processes:
        for one in process.said:
            if block := one.fact("block"):
                asked[block].append(one)
    for process in evidence.of_role("core"):
        for telling in process.tellings:
            hits = [one for one in telling.said if one.number("cached_tokens")]
            opened = [one for one in telling.of(What.OPENED) if one.fact("block")]
            own = opened and (opened[0].epoch > 1 or opened[0].offset > 0)
            if not hits or not opened or own:
                continue
            others = (one for one in asked[opened[0].fact("block")] if one.t <= hits[0].t)
            if not any(one.line.stream != telling.stream for one in others):
                count = hits[0].number("cached_tokens")
                text = f"{count} tokens were cached that nobody had asked under this salt"
                yield violation("I3", text, process, hits[0])


def _kept(process: Process) -> bool:
    """Whether a core's caches were not empty when its history began."""
    first = next((one for one in process.said if one.line.what is What.SAMPLE), None)
    tiers = ("cached", "host_cached", "disk_cached")
    return first is not None and any(map(first.number, tiers))


def resources_return(evidence: Evidence) -> Iterator[Violation]:
    """I6: free + used + cached = total at all times; at rest nothing is used, at the end none."""
    for process in evidence.processes:
        samples = [one for one in process.said if one.line.what in (What.SAMPLE, What.STOPPED)]
        for one in samples:
            yield from _adds_up(process, one)
        yield from _idle_but_used(process, samples)
        if process.stopped and not process.last.fact("failed"):
            yield from _at_the_end(process, samples)


def _adds_up(process: Process, one: Said) -> Iterator[Violation]:
    for tier in TIERS:
        parts = [one.number(tier + name) for name in ("free", "used", "cached")]
        if min(parts) < 0 or sum(parts) != one.number(f"{tier}total"):
            text = f"blocks do not add up: {' + '.join(map(str, parts))} is not "
            yield violation("I6", f"{text}{one.number(f'{tier}total')}", process, one)


def _idle_but_used(process: Process, samples: list[Said]) -> Iterator[Violation]:
    """Two idle samples in a row, since one may fall between a step and its figures."""
    for before, one in pairwise(samples):
        if one is not process.last and _leaked(before) and _leaked(one):
            text = f"a leak: {_used(one)} blocks are used while nothing runs"
            yield violation("I6", text, process, one)
            return


def _leaked(one: Said) -> bool:
    idle = not (one.number("running") or one.number("queued"))
    return idle and _used(one) > 0


def _used(one: Said) -> int:
    return sum(one.number(f"{tier}used") for tier in TIERS)


def _at_the_end(process: Process, samples: list[Said]) -> Iterator[Violation]:
    end = process.last
    handed_over = sum(one.number("left") for one in process.said if one.line.what is What.DRAINED)
    waits = {name: end.number(name) for name in ("running", "queued", "answers", "waiting_bytes")}
    left = {name: count for name, count in waits.items() if count}
    if left and not handed_over:
        text = ", ".join(f"{count} {name}" for name, count in left.items())
        yield violation("I6", f"at the end there are still {text}", process, end)
    elif _used(end) and not handed_over:
        text = f"a leak: {_used(end)} blocks are used at the end"
        yield violation("I6", text, process, end)
    first = samples[:BASELINE_SAMPLES]
    for name, bound in (("rss_bytes", _rss_max), ("files", _files_max)):
        before = max((one.number(name) for one in first if one is not end), default=0)
        if before and end.number(name) > bound(before):
            text = f"{name}: {end.number(name)} at the end, {before} at the beginning"
            yield violation("I6", text, process, end)


def _rss_max(before: int) -> float:
    return before * RSS_GROWTH_MAX + RSS_SLACK_BYTES


def _files_max(before: int) -> float:
    return before + FILES_SLACK
