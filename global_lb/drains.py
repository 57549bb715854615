"""Nodes that an operator wants drained: the one thing that must outlive a load balancer.

It is kept in Redis, if there is one, and read again every 2 s, so that all replicas say the same.
What Redis cannot take now is kept in memory and written when it is there again, as is what it has
forgotten: "no longer" is a word of its own there (0), so that what is missing was lost. A replica
that has not read the list yet says so: nodes that another life of it told to drain go on draining.
"""

import asyncio
import logging
from collections.abc import Mapping

from firstlight.shared import redis_client, telemetry
from firstlight.shared.errors import CapacityError, PeerError
from firstlight.shared.redis_client import Client, Command

KEY = "firstlight:drain"
READ_EVERY_S = 2.0
TIMEOUT_S = 0.5
NODES_MAX = 1024
"""That are to drain; of those that no longer are, so many are remembered."""
NAME_CHARS_MAX = 256

logger = logging.getLogger("firstlight.lb")


class Drains:
    """The list, as far as this replica knows it."""

    def __init__(self, client: Client | None) -> None:
        """`client`: None if nothing is kept beyond this process' life."""
        self._client = client
        self._known: dict[str, bool] = {}
        """Node → whether it is to drain, as Redis last said, or as it is to be told."""
        self._waiting: dict[str, bool] = {}
        """What Redis has not been told yet. Bounded as `_known` is."""
        self._asking = asyncio.Lock()
        self._well = True
        self.whole = client is None
        """Whether the list has been read: who is not on it is not to drain."""

    @property
    def nodes(self) -> frozenset[str]:
        """All nodes that are to drain."""
        wanted = {**self._known, **self._waiting}
        return frozenset(node for node, drain in wanted.items() if drain)

    @property
    def kept(self) -> str:
        """Where the list is: redis, or memory alone."""
        return "memory" if self._client is None or self._waiting or not self._well else "redis"

    async def set(self, node: str, drain: bool) -> None:
        """Want a node drained, or no longer. Raises `CapacityError` if too many are."""
        if drain and len(self.nodes | {node}) > NODES_MAX:
            raise CapacityError(f"{NODES_MAX} nodes are to drain, the most that can be")
        if self._client is None:
            self._known = _bounded({**self._known, node: drain})
            return
        self._waiting = _bounded({**self._waiting, node: drain})
        await self.sync()

    async def run(self, stop: asyncio.Event) -> None:
        """Keep in step with Redis, until `stop`."""
        while not stop.is_set():
            if self._client is not None:
                await self.sync()
            try:
                await asyncio.wait_for(stop.wait(), READ_EVERY_S)
            except TimeoutError:
                continue

    async def sync(self) -> None:
        """Write what waits, and read the list. Raises nothing."""
        async with self._asking:
            told = dict(self._waiting)
            try:
                found = await self._exchange(told)
            except PeerError as error:
                self._failed(error)
                return
            for node, drain in told.items():
                if self._waiting.get(node) is drain:
                    del self._waiting[node]
            lost = {node for node, drain in self._known.items() if drain and node not in found}
            for node in lost - told.keys():
                self._waiting.setdefault(node, True)
            self._known = found
            self.whole = True
            if not self._well:
                logger.info("the list of nodes to drain is kept in Redis again")
            self._well = True
            telemetry.DRAINS_IN_MEMORY.set(0)

    async def _exchange(self, told: Mapping[str, bool]) -> dict[str, bool]:
        """Tell these, and read all. Raises `PeerError`."""
        assert self._client is not None
        commands: list[Command] = [("HSET", KEY, node, int(drain)) for node, drain in told.items()]
        commands.append(("HGETALL", KEY))
        replies = await redis_client.ask(self._client, commands, timeout_s=TIMEOUT_S)
        for reply in replies:
            if isinstance(reply, Exception):
                raise PeerError(str(reply)[:NAME_CHARS_MAX])
        found = _parsed(replies[-1])
        if len(found) > NODES_MAX:
            over = sorted(node for node, drain in found.items() if not drain)
            await redis_client.ask(
                self._client, [("HDEL", KEY, *over[:NODES_MAX])], timeout_s=TIMEOUT_S
            )
        return found

    def _failed(self, error: PeerError) -> None:
        telemetry.DRAINS_IN_MEMORY.set(1)
        if self._well:
            logger.warning(
                "Redis cannot be asked which nodes are to drain (%s): until it can, "
                "what operators say is kept in memory alone",
                error.message,
            )
        self._well = False


def _bounded(wanted: dict[str, bool]) -> dict[str, bool]:
    """All that are to drain, and the last of those that no longer are."""
    over = set([node for node, drain in wanted.items() if not drain][:-NODES_MAX])
    return {node: drain for node, drain in wanted.items() if node not in over}


def _parsed(reply: object) -> dict[str, bool]:
    if not isinstance(reply, list) or len(reply) % 2 or len(reply) > 4 * NODES_MAX + 64:
        raise PeerError(f"{KEY} holds what is no list of nodes")
    found = {}
    for node, drain in zip(reply[::2], reply[1::2], strict=True):
        name = node.decode("utf-8", "replace") if isinstance(node, bytes) else str(node)
        if 0 < len(name) <= NAME_CHARS_MAX:
            found[name] = drain in (b"1", "1")
    return found
