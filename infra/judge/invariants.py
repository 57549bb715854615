"""The table of promises that a judge holds a run to, and the verdict over all of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from firstlight.infra.judge import nodes, requests, tokens
from firstlight.infra.judge.evidence import Evidence
from firstlight.infra.judge.verdict import Verdict, Violation

VIOLATIONS_MAX = 100
"""Of one invariant; more of the same say nothing new."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """One promise."""

    name: str
    says: str
    broken: Callable[[Evidence], Iterable[Violation]]


INVARIANTS = (
    Invariant("I1", "no token lost, doubled or out of order", tokens.no_token_lost_or_doubled),
    Invariant("I2", "one text in one numerics class", tokens.one_text_in_one_class),
    Invariant("I3", "nothing of one tenant reaches another", nodes.tenants_are_apart),
    Invariant("I4", "every request ends, once", requests.one_end_each),
    Invariant("I5", "an error says what it is, and whether to retry", requests.errors_are_clear),
    Invariant("I6", "blocks, queues and memory return", nodes.resources_return),
    Invariant("I7", "one owner a stream", tokens.one_owner),
    Invariant("I8", "work is bounded", requests.work_is_bounded),
    Invariant("I9", "recovery without a person", requests.recovered),
    Invariant("poison", "no innocent stream is called poison", requests.poison_has_a_cause),
)


def judge(evidence: Evidence) -> Verdict:
    """Hold a run to every promise."""
    violations: list[Violation] = []
    for invariant in INVARIANTS:
        found = iter(invariant.broken(evidence))
        violations += [one for one, _ in zip(found, range(VIOLATIONS_MAX), strict=False)]
    broken = {one.invariant for one in violations}
    return Verdict(
        violations=tuple(sorted(violations, key=lambda one: one.said.t)),
        missing=(*evidence.missing, *requests.not_tried(evidence)),
        held=tuple(one.name for one in INVARIANTS if one.name not in broken),
        streams=len(evidence.edge_tellings),
        processes=len(evidence.processes),
    )
