"""Connections to the nearest edge: the shell around `edges`, `race` and `directory`.

Seeds are edges or load balancers, and nobody needs to know which: who completes a QUIC handshake is
an edge, and who knows more says so in its list of edges. What won is remembered and kept warm. It
is looked for again when it is lost, when the network has changed, and when another edge turns out
to be much nearer.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Self

from firstlight.infra.client.answer import ClosedError, Connected, NotConnectedError
from firstlight.infra.client.client import open_client
from firstlight.infra.client.connections import Connections
from firstlight.infra.client.directory import DirectoryKeys, is_server_url
from firstlight.infra.client.edges import Edge, EdgeBook, Ranked
from firstlight.infra.client.lookup import EdgeLists, address_towards, round_trips_s
from firstlight.infra.client.race import Lane, Spoken, lanes_of
from firstlight.infra.client.racing import Won, run_race
from firstlight.infra.client.response import Client
from firstlight.infra.client.tcp import tls_context
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError, PeerError

SEEDS_MAX = 16
CONNECT_TIMEOUT_S = 5.0
KEEP_WARM_S = 120.0
MEASURED_EDGES_MAX = 6
LIST_RETRY_S = 60.0
"""Nobody had a list of edges: not asked again for so long."""
NETWORK_CHECK_S = 1.0
"""A request looks at most so often whether this host has another address."""
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Home:
    """The edge that requests go to now."""

    lane: Lane
    connections: Connections
    peer: tuple[str, int] | None
    address: str | None
    """Of this host, towards it."""

    @property
    def url(self) -> str:
        return self.lane.edge.url


class NearestEdges:
    """A mesh, as one client sees it. Belongs to one event loop; `aclose` it."""

    def __init__(
        self,
        seeds: Iterable[str],
        *,
        ca_file: Path | None = None,
        directory_keys: Iterable[str] = (),
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        keep_warm_s: float = KEEP_WARM_S,
        only: Spoken | None = None,
    ) -> None:
        """`seeds`: edges or load balancers. `ca_file`: certificates to trust in place of the
        system's. `directory_keys`: public keys in hex; with any, no list of edges is believed that
        none of them signed. `keep_warm_s`: for so long after a request its connection is kept.
        `only`: over this HTTP version alone.

        Raises `ConfigError`.
        """
        self.seeds = tuple(seed.rstrip("/") for seed in seeds)
        _check_seeds(self.seeds)
        self._ca_file, self._tls = ca_file, tls_context(ca_file)
        self._lists = EdgeLists(self._tls, DirectoryKeys(directory_keys))
        self._connect_timeout_s, self._keep_warm_s = connect_timeout_s, keep_warm_s
        self._only: Spoken | None = only
        self._book = EdgeBook(Random())
        self._book.learn(Edge(seed) for seed in self.seeds)
        self._listed = False
        """Whether somebody said which edges there are."""
        self._fresh_until_s = 0.0
        self._freshening: asyncio.Task[None] | None = None
        self._home: _Home | None = None
        self._connecting = asyncio.Lock()
        self._failure: tuple[float, PeerError] | None = None
        self._looked_s = 0.0
        self._closed = False

    @property
    def count(self) -> int:
        """How many edges are known."""
        return len(self._book)

    def knows(self, url: str) -> bool:
        """Whether this is a server of the mesh."""
        return url in self.seeds or url in self._book

    @asynccontextmanager
    async def connection(self, lost: Sequence[str]) -> AsyncIterator[Connected]:
        """A connection to the best edge, to one in `lost` only if there is no other.

        Raises `NotConnectedError`, or `ClosedError`.
        """
        home = await self._home_for(lost)
        try:
            async with home.connections.warm() as client:
                yield Connected(home.url, client)
        except PeerError as error:
            if not home.connections.alive:
                self._book.failed(home.url, error.message, monotonic_s())
                await self._leave(home)
            raise

    async def nearest(self) -> list[Ranked]:
        """The edges by distance: the directory is asked, and the nearest are measured, now.

        Raises `DistrustedError`, or `NotConnectedError` if none can be reached.
        """
        await self._freshen()
        reached = await self._measure()
        ranking = self._book.ranking(monotonic_s())
        if not reached:
            urls = ", ".join(one.edge.url for one in ranking)
            raise NotConnectedError(f"no edge can be reached: {urls}")
        return [one for one in ranking if one.edge.url in reached]

    async def network_changed(self) -> None:
        """What was measured and connected belongs to a network that is gone."""
        self._book.network_changed()
        self._fresh_until_s = 0.0
        if self._home is not None:
            await self._leave(self._home)

    async def aclose(self) -> None:
        """Close all; what is asked for from now on raises `ClosedError`."""
        self._closed = True
        if self._freshening is not None:
            self._freshening.cancel()
            await asyncio.gather(self._freshening, return_exceptions=True)
        await self._lists.aclose()
        home, self._home = self._home, None
        if home is not None:
            await home.connections.aclose()

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close all."""
        await self.aclose()

    async def _home_for(self, lost: Sequence[str]) -> _Home:
        self._check_open()
        asked_s = monotonic_s()
        await self._look_at_network(asked_s)
        if (home := self._usable(lost, asked_s)) is not None:
            self._freshen_later(asked_s)
            return home
        async with self._connecting:
            if (home := self._usable(lost, monotonic_s())) is not None:
                return home
            if self._failure is not None and self._failure[0] > asked_s:
                raise NotConnectedError(self._failure[1].message)
            before = self._home
            try:
                home = await self._connect(lost)
            except PeerError as error:
                self._failure = (monotonic_s(), error)
                raise
            finally:
                if before is not None and before is not self._home:
                    await before.connections.retire()
        self._freshen_later(monotonic_s())
        return home

    def _usable(self, lost: Sequence[str], now: float) -> _Home | None:
        home = self._home
        if home is None or home.url in lost or not home.connections.alive:
            return None
        wants_quic = home.lane.edge.quic and self._only is None
        if home.lane.http != "3" and wants_quic and not self._book.udp_doubted(now):
            return None  # it was TCP for a while, and the while is over
        return home

    async def _leave(self, home: _Home) -> None:
        """It is nobody's home any more; what still uses it may end."""
        if self._home is home:
            self._home = None
        await home.connections.retire()

    async def _look_at_network(self, now: float) -> None:
        """Whether this host reaches its edge from another address than before."""
        home = self._home
        if home is None or home.address is None or now - self._looked_s < NETWORK_CHECK_S:
            return
        self._looked_s = now
        if address_towards(home.peer) != home.address:
            _log.info("this host has another address: looking for the nearest edge again")
            await self.network_changed()

    async def _connect(self, lost: Sequence[str]) -> _Home:
        if not self._listed:
            home = await self._connect_seeds()
            if home is not None:
                return home
        now = monotonic_s()
        ranking, doubted = self._book.ranking(now, lost), self._book.udp_doubted(now)
        lanes = lanes_of(ranking, udp_doubted=doubted, only=self._only)
        return await self._race(lanes)

    async def _connect_seeds(self) -> _Home | None:
        """Race the seeds that may be edges, while they are asked for their list. None: there is a
        list now, or no seed is an edge that can be reached over UDP."""
        quic = [] if self._only in ("1", "2") else self._book.ranking(monotonic_s())
        racing = asyncio.create_task(self._race(lanes_of(quic, only="3")))
        listing = asyncio.create_task(self._freshen())
        try:
            await asyncio.wait({racing, listing}, return_when=asyncio.FIRST_COMPLETED)
            if racing.done():
                with suppress(NotConnectedError):
                    return racing.result()
            await listing
            return None
        finally:
            racing.cancel()
            listing.cancel()
            await asyncio.gather(racing, listing, return_exceptions=True)

    async def _race(self, lanes: Sequence[Lane]) -> _Home:
        """The winner, at home: kept from here on, also if whoever asked leaves now."""

        def failed(lane: Lane, reason: str) -> None:
            if self._listed:  # else it may be a load balancer, which has no HTTP/3
                self._book.failed(lane.edge.url, reason, monotonic_s())

        won = await run_race(lanes, self._handshake, limit_s=self._connect_timeout_s, failed=failed)
        if self._closed:
            await won.client.aclose()
            self._check_open()
        self._home = self._at_home(won)
        return self._home

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("these edges are closed: make others to ask again")

    async def _handshake(self, lane: Lane) -> Client:
        try:
            client = self._client(lane)
        except ConfigError as error:  # a list named it: the others may be edges
            raise PeerError(error.message) from error
        try:
            await client.connect()
        except BaseException:
            await client.abort()
            raise
        return client

    def _client(self, lane: Lane) -> Client:
        return open_client(
            lane.edge.url,
            lane.http,
            ca_file=self._ca_file,
            connect_timeout_s=self._connect_timeout_s,
            tls=None if lane.http == "3" else self._tls,
            keep_warm_s=self._keep_warm_s,
        )

    def _at_home(self, won: Won) -> _Home:
        lane, client, now = won.lane, won.client, monotonic_s()
        if client.rtt_s is not None:
            self._book.measured(lane.edge.url, client.rtt_s)
        tcp = lane.http != "3"
        self._book.won(lane.edge.url, tcp=tcp, quic_tried_s=won.quic_tried_s, now=now)
        connections = Connections(lambda: self._client(lane), lane.http)
        connections.keep(client)
        return _Home(lane, connections, client.peer, address_towards(client.peer))

    def _freshen_later(self, now: float) -> None:
        """See to the list of edges and to distances, beside what is asked for."""
        running = self._freshening is not None and not self._freshening.done()
        if not running and now >= self._fresh_until_s:
            self._freshening = asyncio.create_task(self._freshen_and_measure())

    async def _freshen_and_measure(self) -> None:
        try:
            await self._freshen()
        except PeerError as error:
            _log.warning("%s", error.message)
        await self._measure()
        home = self._home
        if home is not None and self._book.much_nearer(home.url, monotonic_s()):
            await self._leave(home)

    async def _freshen(self) -> None:
        """Ask for the list of edges; that nobody has one is no error. Raises `DistrustedError`."""
        self._fresh_until_s = monotonic_s() + LIST_RETRY_S
        known = [one.edge.url for one in self._book.ranking(monotonic_s())[:2]]
        asked = list(dict.fromkeys([*known, *self.seeds]))
        found = await self._lists.first(asked, self._book.rtts_s())
        if found is not None and found.edges:
            self._book.learn(found.edges)
            self._listed = True
            self._fresh_until_s = monotonic_s() + found.expires_in_s

    async def _measure(self) -> set[str]:
        """Measure the nearest; returns those that answered."""
        ranking = self._book.ranking(monotonic_s())[:MEASURED_EDGES_MAX]
        urls = [one.edge.url for one in ranking]
        found = await round_trips_s(urls)
        for url in urls:
            if url in found:
                self._book.measured(url, found[url])
            else:
                self._book.failed(url, "no answer over TCP", monotonic_s())
        return set(found)


def _check_seeds(seeds: Sequence[str]) -> None:
    """Raise `ConfigError` unless these are servers that can be asked."""
    if not 1 <= len(seeds) <= SEEDS_MAX:
        raise ConfigError(f"{len(seeds)} servers to begin with: 1 to {SEEDS_MAX} expected")
    for seed in seeds:
        if not is_server_url(seed, ("https",)):
            raise ConfigError(
                f"{seed!r} is not the address of an edge or load balancer, without a path, "
                "such as https://edge.example.com"
            )
