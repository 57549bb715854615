"""The edge's place in the mesh: reports its load and round trips, remembers what it is told."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from firstlight.edge_node.view import MeshMemory
from firstlight.shared import telemetry
from firstlight.shared.clock import monotonic_s
from firstlight.shared.join import Joiner, Rtts
from firstlight.shared.tls import NodeFiles
from firstlight.shared.types import Load, MeshView, NodeInfo


class EdgeControl:
    """Joins every configured load balancer, and merges their views into `memory`."""

    def __init__(
        self,
        info: NodeInfo,
        files: NodeFiles,
        addresses: Sequence[str],
        memory: MeshMemory,
        *,
        load: Callable[[], Load],
        rtt_ms: Callable[[], Rtts],
        on_change: Callable[[tuple[str, ...]], None] = lambda names: None,
        rng: Random,
    ) -> None:
        self._memory = memory
        self._on_change = on_change
        self._joiner = Joiner(
            info, files, addresses, load=load, rtt_ms=rtt_ms, on_view=self._on_view, rng=rng
        )

    @property
    def joined(self) -> frozenset[str]:
        """Addresses of load balancers that are heard now."""
        return frozenset(self._joiner.joined)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; a load balancer that is gone is not an error."""
        await self._joiner.run(stop)

    def _on_view(self, view: MeshView) -> None:
        changed = self._memory.merge(view, monotonic_s())
        telemetry.MESH_VIEW_AGE_SECONDS.set(0.0)
        if changed:
            self._on_change(changed)
