"""What a node says of itself: whose word is the newer one, and what no node can be. Sans-IO.

Load balancers and edges judge by the same rules, so that they agree without asking each other.
"""

from collections.abc import Iterator

from firstlight.shared.routing.cost import nonsense_load
from firstlight.shared.routing.spill import good_amount, good_rtt, sane
from firstlight.shared.types import Demand, NodeInfo, Report


def order(report: Report) -> tuple[int, int]:
    """What orders the reports of one process."""
    return report.info.incarnation, report.seq


def supersedes(report: Report, known: Report) -> bool:
    """Whether a node's report replaces the one that is known of it.

    Of two processes with one name the later start wins; of two that began in the same millisecond
    the one whose address (then region, and so on) is greater, so that all decide alike, whatever
    comes first.
    """
    if report.info.incarnation != known.info.incarnation:
        return report.info.incarnation > known.info.incarnation
    if report.info != known.info:
        return _identity(report.info) > _identity(known.info)
    return report.seq > known.seq


def another_process(report: Report, known: Report) -> bool:
    """Whether two processes go by one name, and this report is the word of the loser."""
    return report.info != known.info and not supersedes(report, known)


def implausible(report: Report) -> str:
    """What of a report no node can be or measure; empty if all of it may be so."""
    return next(_implausible(report), "")


def _implausible(report: Report) -> Iterator[str]:
    if wrong := nonsense_load(report.load):
        yield wrong
    for core, ms in report.rtt_ms:
        if not good_rtt(ms):
            yield f"a round trip to {core} of {ms:g} ms"
    if report.demand is not None:
        yield from _demand(report.demand)
    if report.following is not None and not sane(report.following.row):
        yield "shares that are not 1 together"


def _demand(demand: Demand) -> Iterator[str]:
    for name in Demand.__slots__:
        value = getattr(demand, name)
        if not good_amount(value):
            yield f"{name} {value:g}"


def _identity(info: NodeInfo) -> tuple[str, str, str]:
    return info.address, info.region, repr(info)
