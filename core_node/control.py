"""The core's place in the mesh: reports its load to every configured load balancer."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from firstlight.shared.join import Joiner
from firstlight.shared.tls import NodeFiles
from firstlight.shared.types import Load, NodeInfo


class CoreControl:
    """Joins every configured load balancer; a core has no use for what they tell."""

    def __init__(
        self,
        info: NodeInfo,
        files: NodeFiles,
        addresses: Sequence[str],
        *,
        load: Callable[[], Load],
        rng: Random,
    ) -> None:
        self._joiner = Joiner(info, files, addresses, load=load, rng=rng)

    @property
    def joined(self) -> frozenset[str]:
        """Addresses of load balancers that are heard now."""
        return frozenset(self._joiner.joined)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; a load balancer that is gone is not an error."""
        await self._joiner.run(stop)
