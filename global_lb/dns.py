"""What DNS answers for the zone that leads clients to edges. Sans-IO.

An answer is a function of the name, the client's network and the table's epoch alone, as a name
server asks for the same name more than once. A and AAAA name two edges in different failure
domains; HTTPS names them one by one, the nearer first, with their protocols. Records that differ by
network say for which: a scope of zero would hand one client's answer to everyone, so it is never
zero.

`Trouble` is raised where nothing is known; whoever speaks to the name server then breaks the
connection, as any answer would become one that the name does not exist.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from firstlight.global_lb.dns_near import Fit, fit_of, worth_ranking
from firstlight.global_lb.dns_table import Steered, Table
from firstlight.shared.geography.directory import Client, rank
from firstlight.shared.geography.subnets import Network
from firstlight.shared.routing.geo import Place

TTL_S = 20
STATIC_TTL_S = 3600
EDGES_PER_ANSWER = 2
STEERED_TYPES = ("ANY", "A", "AAAA", "HTTPS")
SOA_TIMES = "3600 600 86400 20"
"""Refresh, retry, expire; and how long that a name does not exist may be believed."""


class Trouble(Exception):
    """There is no answer that is true: the name server shall say SERVFAIL."""


@dataclass(frozen=True, slots=True)
class Zone:
    """The names that we answer for, lower case, without a dot at the end."""

    name: str
    steered: frozenset[str]
    """Names of the edges, `name` itself perhaps among them."""
    nameservers: tuple[str, ...]
    """The first is also that of the SOA record."""
    hosts: Mapping[str, tuple[str, ...]]
    """Addresses of names in this zone, such as those of the name servers."""
    hostmaster: str
    port: int = 443
    """Edges that listen on another one cannot be named by an address."""


@dataclass(frozen=True, slots=True)
class Record:
    """A resource record, as a name server's backend gives it."""

    qname: str
    qtype: str
    content: str
    ttl_s: int
    scope_bits: int = 0
    """How much of the client's network it holds for; 0 for everyone."""


def fit_to_name(zone: Zone, table: Table | None) -> Fit:
    """The edges of a table that can be named. Raises `Trouble` if there is none."""
    if table is None:
        raise Trouble("no source has told of any edge yet")
    fit = [one for one in table.edges if one.port == zone.port and one.ips]
    if not fit:
        raise Trouble(f"no edge that is known has an address and listens on port {zone.port}")
    return fit_of(fit)


def choose(fit: Fit, agreed: Mapping[str, float], place: Place | None) -> tuple[Steered, ...]:
    """The edges to name to a network, which is at `place`, the nearest first.

    `agreed`: round trips by edge, ms, as the clients of this network have measured them.
    """
    edges = fit.edges if agreed else worth_ranking(fit, place)
    ranked = rank(edges, Client(place=place, reported=agreed))
    return tuple(fit.by_node[one.edge.info.node] for one in ranked[:EDGES_PER_ANSWER])


def is_steered(zone: Zone, name: str, qtype: str) -> bool:
    """Whether the answer rests on who asks."""
    return qtype in STEERED_TYPES and name.rstrip(".").lower() in zone.steered


def lookup(
    zone: Zone, name: str, qtype: str, client: Network, chosen: Callable[[], Sequence[Steered]]
) -> tuple[Record, ...]:
    """Records of a name; `qtype` may be ANY. None at all for a name or type that there is not.

    `chosen` gives what `choose` does, and is asked only if the name leads to edges.
    """
    name = name.rstrip(".").lower()
    records = [*_static(zone, name)]
    if is_steered(zone, name, qtype):
        records += _steered(zone, name, client, chosen())
    return tuple(record for record in records if qtype in ("ANY", record.qtype))


def scope_bits(client: Network) -> int:
    """Of an answer for this network: as much as was looked at, and never zero."""
    return max(1, client.prefixlen)


def _static(zone: Zone, name: str) -> Iterable[Record]:
    if name == zone.name:
        soa = f"{zone.nameservers[0]}. {zone.hostmaster}. 1 {SOA_TIMES}"
        yield Record(name, "SOA", soa, STATIC_TTL_S)
        for server in zone.nameservers:
            yield Record(name, "NS", f"{server}.", STATIC_TTL_S)
    for address in zone.hosts.get(name, ()):
        yield Record(name, _family(address), address, STATIC_TTL_S)


def _steered(zone: Zone, name: str, client: Network, chosen: Sequence[Steered]) -> Iterable[Record]:
    scope = scope_bits(client)
    for one in chosen:
        for address in one.ips:
            yield Record(name, _family(address), address, TTL_S, scope)
    for priority, one in enumerate(chosen, 1):
        yield Record(name, "HTTPS", _https(zone, priority, one), TTL_S, scope)


def _https(zone: Zone, priority: int, one: Steered) -> str:
    parts = [str(priority), ".", "alpn=h3,h2"]
    if zone.port != 443:
        parts.append(f"port={zone.port}")
    for family, key in (("A", "ipv4hint"), ("AAAA", "ipv6hint")):
        addresses = [address for address in one.ips if _family(address) == family]
        if addresses:
            parts.append(f"{key}={','.join(addresses)}")
    return " ".join(parts)


def _family(address: str) -> str:
    return "AAAA" if ":" in address else "A"
