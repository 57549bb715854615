"""Nodes that an operator wants drained: the one thing that must outlive a load balancer.

It is kept in Redis, if there is one, and read again every 2 s, so that all replicas say the same.
What Redis cannot take now is kept in memory and written when it is there again. A replica that has
not read the list yet says so: nodes that another life of it told to drain go on draining.
"""

import asyncio
import logging

from firstlight.shared import redis_client, telemetry
from firstlight.shared.errors import CapacityError, PeerError
from firstlight.shared.redis_client import Client, Command

KEY = "firstlight:drain"
READ_EVERY_S = 2.0
TIMEOUT_S = 0.5
NODES_MAX = 1024
NAME_BYTES_MAX = 1024

logger = logging.getLogger("firstlight.lb")


class Drains:
    """The list, as far as this replica knows it."""

    def __init__(self, client: Client | None) -> None:
        """`client`: None if nothing is kept beyond this process' life."""
        self._client = client
        self._kept: frozenset[str] = frozenset()
        self._waiting: dict[str, bool] = {}
        """Node → whether it is to drain: what Redis has not been told yet."""
        self._writing = asyncio.Lock()
        self._well = True
        self.whole = client is None
        """Whether the list has been read: who is not on it is not to drain."""

    @property
    def nodes(self) -> frozenset[str]:
        """All nodes that are to drain."""
        added = {node for node, drain in self._waiting.items() if drain}
        return (self._kept | added) - (self._waiting.keys() - added)

    @property
    def kept(self) -> str:
        """Where the list is: redis, or memory alone."""
        return "memory" if self._client is None or self._waiting or not self._well else "redis"

    async def set(self, node: str, drain: bool) -> None:
        """Want a node drained, or no longer. Raises `CapacityError` if too many are."""
        if drain and len(self.nodes | {node}) > NODES_MAX:
            raise CapacityError(f"{NODES_MAX} nodes are to drain, the most that can be")
        self._waiting[node] = drain
        if self._client is None:
            self._settle({node: drain})
        else:
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
        assert self._client is not None
        async with self._writing:
            told = dict(self._waiting)
            commands: list[Command] = [
                ("SADD" if drain else "SREM", KEY, node) for node, drain in told.items()
            ]
            try:
                *done, members = await redis_client.ask(
                    self._client, [*commands, ("SMEMBERS", KEY)], timeout_s=TIMEOUT_S
                )
                wrong = [reply for reply in (*done, members) if isinstance(reply, Exception)]
                if wrong:
                    raise PeerError(str(wrong[0]))
                self._kept = _names(members)
            except PeerError as error:
                self._failed(error)
                return
            for node, drain in told.items():
                if self._waiting.get(node) is drain:
                    del self._waiting[node]
            self.whole = True
            if not self._well:
                logger.info("the list of nodes to drain is kept in Redis again")
            self._well = True
            telemetry.DRAINS_IN_MEMORY.set(0)

    def _settle(self, told: dict[str, bool]) -> None:
        """Without Redis, memory is where the list is kept."""
        self._kept = self.nodes
        for node in told:
            self._waiting.pop(node, None)

    def _failed(self, error: PeerError) -> None:
        telemetry.DRAINS_IN_MEMORY.set(1)
        if self._well:
            logger.warning(
                "Redis cannot be asked which nodes are to drain (%s): until it can, "
                "what operators say is kept in memory alone",
                error.message,
            )
        self._well = False


def _names(members: object) -> frozenset[str]:
    if not isinstance(members, (list, set, tuple)) or len(members) > NODES_MAX:
        raise PeerError(f"{KEY} holds what is no list of at most {NODES_MAX} nodes")
    names = (name if isinstance(name, bytes) else str(name).encode() for name in members)
    return frozenset(
        name.decode("utf-8", "replace") for name in names if len(name) <= NAME_BYTES_MAX
    )
