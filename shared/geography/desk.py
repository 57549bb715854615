"""What an edge or a load balancer answers about edges: the list, the keys, what clients measured.

No web framework here: each role puts `Said` on its own wire. The list is made from the reports that
this node has, so it needs nobody else.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any
from urllib.parse import parse_qs

from firstlight.shared import telemetry
from firstlight.shared.clock import monotonic_s, unix_s
from firstlight.shared.errors import AuthError, RequestError, TooLargeError
from firstlight.shared.geography.directory import (
    Client,
    Edge,
    Ranked,
    edges_from,
    rank,
    redirect_target,
)
from firstlight.shared.geography.geoip import Geoip
from firstlight.shared.geography.rtts import Fate, ReportedRtts
from firstlight.shared.geography.signing import EDGES, HEADER, STEERING, Signer
from firstlight.shared.geography.site import ips_of, said_place
from firstlight.shared.geography.subnets import (
    Address,
    Network,
    address_of,
    network_of,
    subnet_of,
)
from firstlight.shared.routing.geo import Place
from firstlight.shared.types import NodeInfo, Report, Role

ALPN = ["h3", "h2", "http/1.1"]
LIST_SERVES_S = 60.0
EDGES_DEFAULT, EDGES_MAX = 16, 64
MEASURED_MAX = 16
MEASURED_MS_MAX = 10_000.0
TOLD_BYTES_MAX = 8 << 10
FIELDS_MAX = 64
NETWORKS_MAX = 4096
"""Of which the table for DNS says what clients agree on; those that spoke last."""
FRESH_S = 0.5
"""How long a list of edges, or the table for DNS, is not made anew."""
REFRESH_S, EXPIRE_S = 5.0, 60.0
REDIRECTED = "firstlight_redirected"
"""The query parameter of who was sent on once."""
_NONCE = re.compile(r"[A-Za-z0-9_-]{1,64}")

Query = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Said:
    """A body with its headers."""

    body: bytes
    headers: dict[str, str]


class Desk:
    """Answers about edges, from what `reports` says lives now."""

    def __init__(
        self,
        node: str,
        reports: Callable[[], Iterable[Report]],
        geoip: Geoip,
        signer: Signer,
        *,
        now: Callable[[], float] = monotonic_s,
    ) -> None:
        self._node, self._reports, self._signer, self._now = node, reports, signer, now
        self.geoip = geoip
        self.rtts = ReportedRtts()
        self.own: Callable[[], Report | None] = lambda: None
        """An edge's word on itself, which it needs nobody to pass on."""
        self._edges: tuple[Edge, ...] = ()
        self._draining: tuple[str, ...] = ()
        self._edges_at = float("-inf")
        self._places: dict[str, tuple[NodeInfo, Place | None]] = {}
        """Of nodes, by what they said then; a look into the databases is dear."""
        self._placed_by = -1
        """The generation of databases."""
        self._table = Said(b"", {})
        self._table_at = float("-inf")

    async def keep(self, stop: asyncio.Event) -> None:
        """Notice new databases, forget old words, until `stop`."""
        expired_at = self._now()
        while not stop.is_set():
            await asyncio.to_thread(self.geoip.refresh)
            if self._now() - expired_at >= EXPIRE_S:
                expired_at = self._now()
                self.rtts.expire(expired_at)
            try:
                await asyncio.wait_for(stop.wait(), REFRESH_S)
            except TimeoutError:
                continue

    def edges(self, query_string: str, peer: str | None) -> Said:
        """`GET /v1/edges`. Raises `RequestError` for a parameter that is none."""
        query = _parsed(query_string)
        nonce = _nonce(query)
        count = _count(query)
        network, place = self._where(query, peer)
        client = Client(
            place=place,
            region=_one(query, "region"),
            measured=_measured(query),
            reported=self._agreed(network),
        )
        ranked = rank(self._live(), client)[:count]
        telemetry.EDGE_LISTS.labels(rtt_from=ranked[0].rtt_from if ranked else "none").inc()
        return self._signed(
            EDGES,
            {
                "object": "list",
                "node": self._node,
                "nonce": nonce,
                "issued_unix_s": int(unix_s()),
                "expires_in_s": LIST_SERVES_S,
                "client": _client(network, place),
                "attribution": [asdict(one) for one in self.geoip.attributions()],
                "data": [_entry(one) for one in ranked],
            },
        )

    def keys(self) -> Said:
        """`GET /v1/keys`."""
        data = [
            {"id": key.id, "algorithm": "ed25519", "public_key": key.raw.hex()}
            for key in self._signer.public
        ]
        return _plain({"object": "list", "data": data})

    async def tell(self, chunks: AsyncIterable[bytes], peer: str | None) -> Said:
        """`POST /v1/rtt`. Raises `RequestError` for a body that is none."""
        told = _told(await _read(chunks))
        address = address_of(peer or "")
        if address is None:
            raise RequestError(f"the client's address {str(peer)[:80]!r} is none")
        place = self._place(address)
        live = {edge.info.node: edge for edge in self._live()}
        refused = []
        for node, ms in told.items():
            edge = live.get(node)
            fate = Fate.REFUSED
            if edge is not None:
                fate = self.rtts.tell(
                    address, node, ms, self._now(), client_place=place, edge_place=edge.place
                )
            telemetry.CLIENT_RTTS.labels(fate=fate).inc()
            if fate is Fate.REFUSED:
                refused.append(node)
        return _plain({"taken": len(told) - len(refused), "refused": refused})

    def steering(self, authorization: str | None) -> Said:
        """`GET /v1/steering`: all edges, and what networks agree on, for who answers DNS.

        Which networks ask here is not everybody's business: raises `AuthError` without the token.
        """
        if not self._signer.knows((authorization or "").removeprefix("Bearer ")):
            raise AuthError("the table for DNS is told to who has the key of the directory")
        now = self._now()
        if now - self._table_at > FRESH_S:
            self._table_at = now
            agreed = [
                [str(network), edge, round(ms, 3)]
                for network, edges in self.rtts.all_agreed(now, NETWORKS_MAX)
                for edge, ms in edges.items()
            ]
            self._table = self._signed(
                STEERING,
                {
                    "object": "steering",
                    "node": self._node,
                    "edges": [_steered(edge) for edge in self._live()],
                    "draining": list(self._draining),
                    "agreed": agreed,
                },
            )
        return self._table

    def nearer(self, peer: str | None, *, already: bool) -> Ranked | None:
        """The edge that this client should be sent on to, or None."""
        address = address_of(peer or "")
        if already or address is None:
            return None
        client = Client(place=self._place(address), reported=self._agreed(network_of(address)))
        return redirect_target(self._live(), client, self._node, already=already)

    def _live(self) -> tuple[Edge, ...]:
        now = self._now()
        if now - self._edges_at > FRESH_S:
            told = {report.info.node: report for report in self._reports()}
            own = self.own()
            if own is not None:
                told[own.info.node] = own
            if self.geoip.generation != self._placed_by:
                self._placed_by, self._places = self.geoip.generation, {}
            self._places = {name: self._places[name] for name in told if name in self._places}
            self._edges = edges_from(told.values(), self._node_place)
            self._draining = tuple(
                name
                for name, report in told.items()
                if report.info.role is Role.EDGE and report.load.draining
            )
            self._edges_at = now
        return self._edges

    def _node_place(self, info: NodeInfo) -> Place | None:
        known = self._places.get(info.node)
        if known is None or (known[0] is not info and known[0] != info):
            known = self._places[info.node] = (info, self._looked_up(info))
        return known[1]

    def _looked_up(self, info: NodeInfo) -> Place | None:
        said = said_place(info)
        if said is not None:
            return said
        addresses = (address_of(text) for text in ips_of(info))
        return next((self._place(one) for one in addresses if one is not None), None)

    def _place(self, address: Address) -> Place | None:
        found = self.geoip.find(address)
        return None if found is None else found.place

    def _agreed(self, network: Network | None) -> Mapping[str, float]:
        return {} if network is None else self.rtts.agreed(network, self._now())

    def _where(self, query: Query, peer: str | None) -> tuple[Network | None, Place | None]:
        given = _one(query, "ecs")
        if given is not None:
            network = subnet_of(given)
            if network is None:
                raise RequestError(f"ecs {given[:80]!r}, expected ADDRESS/BITS", param="ecs")
            return network, self._place(network.network_address)
        address = address_of(peer or "")
        return (None, None) if address is None else (network_of(address), self._place(address))

    def _signed(self, purpose: bytes, document: Mapping[str, Any]) -> Said:
        said = _plain(document)
        return Said(said.body, {**said.headers, HEADER: self._signer.header(purpose, said.body)})


def _plain(document: Mapping[str, Any]) -> Said:
    body = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    return Said(body, {"content-type": "application/json", "cache-control": "no-store"})


def _client(network: Network | None, place: Place | None) -> dict[str, str | None]:
    known = "nothing" if place is None else "city" if place.exact else "country"
    return {
        "prefix": None if network is None else str(network),
        "country": None if place is None else place.country or None,
        "known_by": known,
    }


def _entry(one: Ranked) -> dict[str, Any]:
    info = one.edge.info
    return {
        "node": info.node,
        "region": info.region,
        "failure_domain": one.edge.domain,
        "address": info.address,
        "url": f"https://{info.address}",
        "ips": list(ips_of(info)),
        "alpn": ALPN,
        "expected_rtt_ms": None if one.rtt_ms is None else round(one.rtt_ms, 3),
        "rtt_from": one.rtt_from,
    }


def _steered(edge: Edge) -> dict[str, Any]:
    return {
        "node": edge.info.node,
        "region": edge.info.region,
        "failure_domain": edge.domain,
        "address": edge.info.address,
        "ips": list(ips_of(edge.info)),
        "place": None if edge.place is None else [edge.place.latitude, edge.place.longitude],
        "exact": edge.place is not None and edge.place.exact,
    }


def _parsed(query_string: str) -> Query:
    try:
        return parse_qs(query_string, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise RequestError(f"more than {FIELDS_MAX} parameters") from None


def _one(query: Query, name: str) -> str | None:
    values = query.get(name, ())
    return values[-1][:200] if values else None


def _nonce(query: Query) -> str | None:
    nonce = _one(query, "nonce")
    if nonce is not None and not _NONCE.fullmatch(nonce):
        raise RequestError(
            f"nonce {nonce[:80]!r}, expected 1 to 64 letters, digits, '_' or '-'", param="nonce"
        )
    return nonce


def _count(query: Query) -> int:
    text = _one(query, "count")
    if text is None:
        return EDGES_DEFAULT
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= EDGES_MAX:
        raise RequestError(f"count {text[:80]!r}, expected 1 to {EDGES_MAX}", param="count")
    return int(text)


def _measured(query: Query) -> dict[str, float]:
    given = query.get("rtt", ())
    if len(given) > MEASURED_MAX:
        raise RequestError(f"rtt {len(given)} times, at most {MEASURED_MAX} expected", param="rtt")
    measured = {}
    for text in given:
        node, _, number = text.rpartition(":")
        ms = _number(number)
        if not node or ms is None or not 0 < ms <= MEASURED_MS_MAX:
            raise RequestError(f"rtt {text[:80]!r}, expected NODE:MILLISECONDS", param="rtt")
        measured[node] = ms
    return measured


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


async def _read(chunks: AsyncIterable[bytes]) -> bytes:
    body = b""
    async for chunk in chunks:
        body += chunk
        if len(body) > TOLD_BYTES_MAX:
            raise TooLargeError(f"a body above {TOLD_BYTES_MAX} bytes")
    return body


def _told(raw: bytes) -> dict[str, float]:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        document = None
    edges = document.get("edges") if isinstance(document, dict) else None
    if not isinstance(edges, dict) or not 0 < len(edges) <= MEASURED_MAX:
        raise RequestError(
            f'a body of {len(raw)} bytes, expected {{"edges": {{NODE: MILLISECONDS}}}} of up to '
            f"{MEASURED_MAX} edges",
            param="edges",
        )
    for node, ms in edges.items():
        if not node.isprintable():  # half a surrogate pair, which no answer could name
            raise RequestError(f"edges: {node[:80]!r} is no name", param="edges")
        if isinstance(ms, bool) or not isinstance(ms, int | float):
            raise RequestError(f"edges.{node[:80]}: not a number", param="edges")
    return {node: _finite(ms) for node, ms in edges.items()}


def _finite(value: float) -> float:
    """A JSON number of any length as a float; one too large for it is no round trip."""
    try:
        return float(value)
    except OverflowError:
        return float("inf")
