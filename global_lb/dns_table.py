"""What DNS answers from: the edges that sources told of, kept when sources fall silent. Sans-IO.

An edge that any source lists is in the table; one that none lists is kept for `HELD_S` of answers
without it, so that a source which just started, and knows few, empties nothing; one that drains
goes at once. If no source answers at all, or none knows any edge, nothing changes: the last table
is good for ever.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from firstlight.shared.geography.directory import Edge
from firstlight.shared.geography.rtts import RTT_MS_MAX
from firstlight.shared.geography.subnets import Network, is_ip, subnet_of
from firstlight.shared.routing.geo import Place, on_earth
from firstlight.shared.types import NodeInfo, Role

HELD_S = 10.0
EDGES_MAX = 4096
IPS_MAX = 16
AGREED_MAX = 100_000
TEXT_CHARS_MAX = 256

Agreed = Mapping[Network, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Steered:
    """An edge that DNS may name."""

    edge: Edge
    ips: tuple[str, ...]
    port: int


@dataclass(frozen=True, slots=True)
class Table:
    """What is known; a value, so that all answers of an epoch are alike."""

    epoch: int
    edges: tuple[Steered, ...]
    """By name."""
    agreed: Agreed = field(default_factory=dict)


class TableKeeper:
    """The table in force, from what sources tell."""

    def __init__(self) -> None:
        self.table: Table | None = None
        """None until a source has told of an edge."""
        self._seen: dict[str, tuple[Steered, float | None]] = {}
        """Edge ─► as last told, and since when answers lack it."""

    def take(self, told: Iterable[Mapping[str, Any]], now: float) -> bool:
        """Documents of all sources that answered; whether another table is in force by it."""
        documents = list(told)
        if not documents:
            return False
        agreed: dict[Network, dict[str, float]] = {}
        listed: dict[str, Steered] = {}
        draining: set[str] = set()
        for document in documents:
            listed |= {one.edge.info.node: one for one in _edges(document)}
            draining |= set(_names(document.get("draining")))
            _add_agreed(agreed, document)
        self._seen = self._after(listed, draining, now) or self._seen
        edges = tuple(steered for _, (steered, _) in sorted(self._seen.items()))
        known = self.table
        if not edges or (known is not None and (known.edges, known.agreed) == (edges, agreed)):
            return False
        self.table = Table(1 if known is None else known.epoch + 1, edges, agreed)
        return True

    def _after(
        self, listed: Mapping[str, Steered], draining: Set[str], now: float
    ) -> dict[str, tuple[Steered, float | None]]:
        after: dict[str, tuple[Steered, float | None]] = {}
        for name, (steered, since) in self._seen.items():
            lacking_since = now if since is None else since
            if name not in listed and now - lacking_since <= HELD_S:
                after[name] = steered, lacking_since
        for name, steered in listed.items():
            if len(after) < EDGES_MAX:
                after[name] = steered, None
        return {name: kept for name, kept in after.items() if name not in draining}


def _names(given: object) -> Iterable[str]:
    return (one for one in given if isinstance(one, str)) if isinstance(given, list) else ()


def _edges(document: Mapping[str, Any]) -> Iterable[Steered]:
    given = document.get("edges")
    for one in given if isinstance(given, list) else []:
        steered = _steered(one) if isinstance(one, dict) else None
        if steered is not None:
            yield steered


def _steered(one: Mapping[str, Any]) -> Steered | None:
    """An edge of a document; None if it is none. A signature says who wrote it, not how well."""
    texts = [one.get(key) for key in ("node", "region", "failure_domain", "address")]
    if not all(isinstance(text, str) and 0 < len(text) <= TEXT_CHARS_MAX for text in texts):
        return None
    node, region, domain, address = (str(text) for text in texts)
    port = address.rpartition(":")[2]
    given = one.get("ips")
    ips = [text for text in given if isinstance(text, str)] if isinstance(given, list) else []
    if not (port.isascii() and port.isdigit() and len(port) <= 5):
        return None
    info = NodeInfo(node, Role.EDGE, 0, region, address, failure_domain=domain)
    place = _place(one.get("place"), exact=one.get("exact") is True)
    return Steered(
        Edge(info, place), tuple(text for text in ips if is_ip(text))[:IPS_MAX], int(port)
    )


def _place(given: object, *, exact: bool) -> Place | None:
    if not isinstance(given, list) or len(given) != 2:
        return None
    if not all(isinstance(degrees, int | float) for degrees in given):
        return None
    return Place(given[0], given[1], exact=exact) if on_earth(*given) else None


def _add_agreed(agreed: dict[Network, dict[str, float]], document: Mapping[str, Any]) -> None:
    """Of several sources the shortest round trip: who said more heard of a worse moment."""
    given = document.get("agreed")
    for row in given[:AGREED_MAX] if isinstance(given, list) else []:
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], str):
            continue
        network, edge, ms = subnet_of(row[0]), row[1], row[2]
        if network is None or not isinstance(edge, str) or not isinstance(ms, int | float):
            continue
        if 0 < ms <= RTT_MS_MAX:  # false for NaN
            known = agreed.setdefault(network, {})
            known[edge] = min(float(ms), known.get(edge, RTT_MS_MAX))
