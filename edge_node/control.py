"""The edge's place in the mesh: reports its load and round trips, remembers what it is told."""

import asyncio
import logging
from collections.abc import Callable, Sequence, Sized
from contextlib import AbstractAsyncContextManager
from random import Random

from firstlight.edge_node.view import MeshMemory
from firstlight.shared import telemetry
from firstlight.shared.clock import monotonic_s
from firstlight.shared.complaints import Complaints
from firstlight.shared.join import Joiner, Rtts
from firstlight.shared.tls import NodeFiles
from firstlight.shared.types import Demand, Load, MeshView, NodeInfo, Role

logger = logging.getLogger("firstlight.edge")


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
        demand: Callable[[], Demand | None] = lambda: None,
        rng: Random,
    ) -> None:
        telemetry.MESH_VIEW_AGE_SECONDS.set_function(
            lambda: memory.view_age_s(monotonic_s()) or 0.0
        )
        self._memory = memory
        self._complaints = Complaints()
        self._joiner = Joiner(
            info,
            files,
            addresses,
            load=load,
            rtt_ms=rtt_ms,
            demand=demand,
            following=lambda: memory.following(info.region, monotonic_s()),
            on_view=self._on_view,
            rng=rng,
        )

    @property
    def joined(self) -> frozenset[str]:
        """Addresses of load balancers that are heard now."""
        return frozenset(self._joiner.joined)

    def member(self, stop: asyncio.Event) -> AbstractAsyncContextManager[None]:
        """A member of the mesh while the block runs; a load balancer that is gone is no error."""
        return self._joiner.member(stop)

    def _on_view(self, view: MeshView) -> None:
        now = monotonic_s()
        merged = self._memory.merge(view, now)
        if merged.changed:
            logger.info("new, changed or gone: %s", ", ".join(merged.changed))
        for node, reason, words in merged.ignored:
            telemetry.MESH_IGNORED.labels(role=Role.EDGE, reason=reason).inc()
            if self._complaints.new(node, reason, now):
                logger.warning("%s: ignored, as %s tells it: %s", node, view.lb, words)


def load_of(answers: Sized, stop: asyncio.Event) -> Load:
    """What an edge with these answers on their way says of itself; told to stop, it drains."""
    return Load(running=len(answers), draining=stop.is_set())
