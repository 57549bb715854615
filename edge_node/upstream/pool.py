"""Warm links to every core of the mesh: made before a request needs them, remade when lost."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from random import Random

import grpc

from firstlight.edge_node.upstream.link import CoreLink
from firstlight.edge_node.upstream.warmth import LinksConfig
from firstlight.edge_node.view import MeshMemory
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import FirstlightError
from firstlight.shared.history_file import History
from firstlight.shared.liveness import Lost
from firstlight.shared.routing.cost import RTT_PRIOR_MS
from firstlight.shared.types import NodeInfo

log = logging.getLogger(__name__)

ByRegion = Mapping[str, Mapping[str, CoreLink]]
"""Links by region, and there by core."""

TICK_S = 0.1
RECONNECT_MIN_S, RECONNECT_MAX_S = 0.05, 2.0


class LinkPool:
    """One `CoreLink` a core, for as long as the mesh view names the core."""

    def __init__(
        self,
        memory: MeshMemory,
        connect: Callable[[str], grpc.aio.Channel],
        rng: Random,
        *,
        on_lost: Callable[[str, Lost | None], None] = lambda core, lost: None,
        history: History | None = None,
        config: LinksConfig | None = None,
        rtt_prior_ms: Callable[[NodeInfo], float] = lambda core: RTT_PRIOR_MS,
    ) -> None:
        """`connect` opens a channel to an address; `on_lost` hears of each link that was up,
        and by which rule it was given up, if it was by one. `rtt_prior_ms`: to a core, by
        geography, until it is measured."""
        self._memory = memory
        self.on_lost = on_lost
        self._connect = connect
        self._history, self._config = history, config
        self._rtt_prior_ms = rtt_prior_ms
        self._rng = rng
        self._links: dict[str, CoreLink] = {}
        self._by_region: dict[str, ByRegion] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._infos: dict[str, NodeInfo] = {}

    @property
    def links(self) -> list[CoreLink]:
        """Links that are up, in order of the cores' names."""
        return [link for link in self._links.values() if link.up]

    def by_region(self, tokenizer_hash: str) -> ByRegion:
        """Links that are up, to cores with this tokenizer. Put together anew when a link has come
        or gone, and not for each request."""
        if tokenizer_hash not in self._by_region:
            found: dict[str, dict[str, CoreLink]] = {}
            for link in self.links:
                if link.info.tokenizer_hash == tokenizer_hash:
                    found.setdefault(link.info.region, {})[link.info.node] = link
            self._by_region[tokenizer_hash] = found
        return self._by_region[tokenizer_hash]

    def link(self, core: str) -> CoreLink | None:
        """The link to a core, if it is up."""
        link = self._links.get(core)
        return link if link is not None and link.up else None

    async def run(self) -> None:
        """Follow the view and the links' timers until cancelled."""
        try:
            while True:
                self._follow_view()
                for link in list(self._links.values()):
                    link.check(monotonic_s())
                await asyncio.sleep(TICK_S)
        finally:
            keepers = list(self._keepers.values())
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)

    def _follow_view(self) -> None:
        infos = self._memory.core_infos()
        for core in [core for core in self._keepers if core not in infos]:
            if core not in self._links:
                self._keepers.pop(core).cancel()
                self._infos.pop(core, None)
        for core, info in infos.items():
            self._infos[core] = info
            if core not in self._keepers:
                self._keepers[core] = asyncio.create_task(self._keep(core))

    async def _keep(self, core: str) -> None:
        wait_s = RECONNECT_MIN_S
        while True:
            try:
                if await self._link_once(core):
                    wait_s = RECONNECT_MIN_S
            except OSError as error:  # our certificate is just being replaced
                log.warning("no link to %s: %s", core, error)
            await asyncio.sleep(wait_s * self._rng.uniform(0.5, 1.0))
            wait_s = min(RECONNECT_MAX_S, wait_s * 2)

    async def _link_once(self, core: str) -> bool:
        """One life of a link; whether it ever came up."""
        info = self._infos[core]
        channel = self._connect(info.address)
        prior_ms = self._rtt_prior_ms(info)
        link = CoreLink(info, channel, self._memory, self._history, self._config, prior_ms)
        self._links = dict(sorted([*self._links.items(), (core, link)]))
        link.on_change = self._by_region.clear
        try:
            reason = await link.run()
        except Exception as error:  # a bug of ours: the other requests still need this core
            log.exception("the link to %s failed", core)
            reason = FirstlightError(repr(error))
        finally:
            del self._links[core]
            with contextlib.suppress(grpc.RpcError):
                await channel.close()
        if link.welcomed:
            self.on_lost(core, link.lost)
            log.warning("link to %s lost: %s", core, reason.message)
        else:
            log.debug("no link to %s: %s", core, reason.message)
        return link.welcomed
