"""What clients say of their round trips, and when others may be steered by it. Sans-IO.

A client's word orders its own list at once, elsewhere. Here it counts for its neighbours: at least
`CLIENTS_MIN` clients of one /24 or /48, most of those that spoke, have to say about the same of an
edge. So nobody moves a network alone, and who owns a network moves only that.

    told ─► refused: no number, or below zero
         ─► clamped: below light on the great circle, if both places are exact; above `RTT_MS_MAX`
         ─► kept an hour, the latest word of a client and edge; bounded by prefix, edge and client

A client is its address, or its /64: within one nobody is independent.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv6Address, ip_network
from math import inf, isfinite
from statistics import median

from firstlight.shared.geography.subnets import Address, Network, network_of
from firstlight.shared.routing.geo import Place, distance_km, light_rtt_ms

CLIENTS_MIN = 3
CLIENTS_MAX = 16
"""Of one network and edge; the one that spoke longest ago goes."""
EDGES_MAX = 16
"""Of one network."""
NETWORKS_MAX = 20_000
NEIGHBOURS_MAX = 512
"""Networks of one /16 or /32: who owns a large one cannot drive out the others."""
KEPT_S = 3600.0
RTT_MS_MAX = 3000.0
ALIKE_SHARE, ALIKE_MS = 0.3, 5.0
"""How far words may lie from their median and still agree: the larger of both."""


class Fate(StrEnum):
    """What became of a client's word."""

    TAKEN = "taken"
    CLAMPED = "clamped"
    REFUSED = "refused"


@dataclass(slots=True)
class _Words:
    """Of a network's clients on one edge, and what they come to: the table for DNS asks each second
    what all networks agree on, and few have spoken since."""

    by_client: "OrderedDict[object, tuple[float, float]]" = field(default_factory=OrderedDict)
    """client ─► (ms, when); the latest last."""
    agreed_ms: float | None = None
    until: float = -inf
    """Then the first word is too old, and they come to something else."""

    def agreed(self, now: float) -> float | None:
        """What most of them agree on, if they do."""
        if now > self.until:
            self.settle(now)
        return self.agreed_ms

    def settle(self, now: float) -> None:
        """Work it out."""
        counted = [(ms, at) for ms, at in self.by_client.values() if now - at <= KEPT_S]
        self.agreed_ms = _middle([ms for ms, _ in counted])
        self.until = min((at + KEPT_S for _, at in counted), default=inf)

    def stale(self, now: float) -> bool:
        """Whether nobody has spoken for so long that nothing counts any more."""
        _, latest = next(reversed(self.by_client.values()))
        return now - latest > KEPT_S


@dataclass(slots=True)
class _Network:
    edges: "OrderedDict[str, _Words]" = field(default_factory=OrderedDict)
    """The latest last."""


class ReportedRtts:
    """The words of clients, by network. Reading changes nothing."""

    def __init__(self) -> None:
        self._networks: OrderedDict[Network, _Network] = OrderedDict()
        self._neighbours: dict[Network, OrderedDict[Network, None]] = {}
        self.version = 0
        """Grows with every word that is kept."""

    @property
    def networks(self) -> int:
        """How many networks are kept."""
        return len(self._networks)

    def tell(
        self,
        client: Address,
        edge: str,
        ms: float,
        now: float,
        *,
        client_place: Place | None = None,
        edge_place: Place | None = None,
    ) -> Fate:
        """Take a client's word on an edge that is known to live."""
        if not isfinite(ms) or ms <= 0:
            return Fate.REFUSED
        held = _clamped(ms, client_place, edge_place)
        network = network_of(client)
        edges = self._touch(network).edges
        words = edges.setdefault(edge, _Words())
        edges.move_to_end(edge)
        if len(edges) > EDGES_MAX:
            edges.popitem(last=False)
        who = _who(client)
        words.by_client[who] = held, now
        words.by_client.move_to_end(who)
        if len(words.by_client) > CLIENTS_MAX:
            words.by_client.popitem(last=False)
        words.settle(now)
        self.version += 1
        return Fate.TAKEN if held == ms else Fate.CLAMPED

    def agreed(self, network: Network, now: float) -> dict[str, float]:
        """Edge ─► round trip that clients of this very network agree on."""
        known = self._networks.get(network)
        if known is None:
            return {}
        told = ((edge, words.agreed(now)) for edge, words in known.edges.items())
        return {edge: ms for edge, ms in told if ms is not None}

    def all_agreed(self, now: float, most: int) -> Iterator[tuple[Network, Mapping[str, float]]]:
        """Networks that agree on anything, those that spoke last first."""
        for network in reversed(self._networks):
            agreed = self.agreed(network, now)
            if agreed:
                yield network, agreed
                most -= 1
            if most <= 0:
                return

    def expire(self, now: float) -> None:
        """Forget networks that have been silent for `KEPT_S`: every minute or so."""
        for network, kept in list(self._networks.items()):
            if all(words.stale(now) for words in kept.edges.values()):
                self._drop(network)

    def _touch(self, network: Network) -> _Network:
        wide = _wide(network)
        if network not in self._networks:
            if len(self._neighbours.get(wide, ())) >= NEIGHBOURS_MAX:
                self._drop(next(iter(self._neighbours[wide])))
            elif len(self._networks) >= NETWORKS_MAX:
                self._drop(next(iter(self._networks)))
            self._networks[network] = _Network()
        self._networks.move_to_end(network)
        near = self._neighbours.setdefault(wide, OrderedDict())
        near[network] = None
        near.move_to_end(network)
        return self._networks[network]

    def _drop(self, network: Network) -> None:
        del self._networks[network]
        wide = _wide(network)
        del self._neighbours[wide][network]
        if not self._neighbours[wide]:
            del self._neighbours[wide]
        self.version += 1


def _clamped(ms: float, client: Place | None, edge: Place | None) -> float:
    held = min(ms, RTT_MS_MAX)
    if client is not None and edge is not None and client.exact and edge.exact:
        held = max(held, light_rtt_ms(distance_km(client, edge)))
    return held


def _middle(told: Sequence[float]) -> float | None:
    """The median, if there are enough words and most of them lie near it."""
    if len(told) < CLIENTS_MIN:
        return None
    middle = median(told)
    alike = sum(abs(ms - middle) <= max(ALIKE_MS, ALIKE_SHARE * middle) for ms in told)
    return middle if alike >= CLIENTS_MIN and 2 * alike > len(told) else None


def _who(client: Address) -> object:
    return ip_network((client, 64), strict=False) if isinstance(client, IPv6Address) else client


def _wide(network: Network) -> Network:
    bits = 16 if network.version == 4 else 32
    return network.supernet(new_prefix=bits) if network.prefixlen > bits else network
