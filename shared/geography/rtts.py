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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv6Address, ip_network
from math import isfinite
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
class _Network:
    edges: "OrderedDict[str, OrderedDict[object, tuple[float, float]]]" = field(
        default_factory=OrderedDict
    )
    """edge ─► client ─► (ms, when); the latest last."""


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
        words = edges.setdefault(edge, OrderedDict())
        edges.move_to_end(edge)
        if len(edges) > EDGES_MAX:
            edges.popitem(last=False)
        who = _who(client)
        words[who] = held, now
        words.move_to_end(who)
        if len(words) > CLIENTS_MAX:
            words.popitem(last=False)
        self.version += 1
        return Fate.TAKEN if held == ms else Fate.CLAMPED

    def agreed(self, network: Network, now: float) -> dict[str, float]:
        """Edge ─► round trip that clients of this very network agree on."""
        known = self._networks.get(network)
        return {} if known is None else dict(_agreed(known, now))

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
            if all(_stale(words, now) for words in kept.edges.values()):
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


def _agreed(known: _Network, now: float) -> Iterator[tuple[str, float]]:
    for edge, words in known.edges.items():
        told = [ms for ms, at in words.values() if now - at <= KEPT_S]
        if not told:
            continue
        middle = median(told)
        alike = sum(abs(ms - middle) <= max(ALIKE_MS, ALIKE_SHARE * middle) for ms in told)
        if alike >= CLIENTS_MIN and 2 * alike > len(told):
            yield edge, middle


def _stale(words: Mapping[object, tuple[float, float]], now: float) -> bool:
    return all(now - at > KEPT_S for _, at in words.values())


def _who(client: Address) -> object:
    return ip_network((client, 64), strict=False) if isinstance(client, IPv6Address) else client


def _wide(network: Network) -> Network:
    bits = 16 if network.version == 4 else 32
    return network.supernet(new_prefix=bits) if network.prefixlen > bits else network
