"""What all of a mesh know together: how much work comes in where, and which region is to do it.

Once a second the load balancers' rule for that (`shared.routing.spill_step`) is given what came in
during the last ten seconds and how many cores live. A published rule of others does not look at it.
"""

from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, runtime_checkable

from firstlight.infra.sim.edge import Server
from firstlight.infra.sim.policies.policy import Ask
from firstlight.infra.sim.setup import Setup
from firstlight.infra.sim.workload import ANSWER_GUESS_TOKENS, Asked, work_s
from firstlight.shared.blocks import HASH_BYTES
from firstlight.shared.routing.spill import RegionSupply, Row
from firstlight.shared.routing.spill_step import Spill, step

DEMAND_S = 10.0


@runtime_checkable
class Hears(Protocol):
    """A rule that is told more than the published ones ask for."""

    def computed(self, ask: Ask, server: int, cached_tokens: int, now: float) -> None:
        """A first commit said how much of the prompt was cached."""

    def turned_away(self, server: int, now: float) -> None:
        """A core refused a request."""

    def lost(self, server: int, now: float) -> None:
        """A core is gone, and its cache with it."""


class Mesh:
    """Shares in force, by region of origin."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.regions = setup.matrix.regions
        self.spill = Spill()
        self.sketches: tuple[bytes, ...] = ()
        """By server: what edges have heard of its hot prefixes."""
        self._sketches_next: tuple[bytes, ...] = ()
        self._work: deque[tuple[int, float]] = deque()
        """(origin, seconds of work) of what came in lately."""
        self._arrived_s: deque[float] = deque()
        self._names: dict[int, bytes] = {}
        self._rtt_ms = {
            (one, other): setup.matrix.rtt_ms[i][j]
            for i, one in enumerate(self.regions)
            for j, other in enumerate(self.regions)
        }

    def row(self, region: int) -> Row | None:
        """Where work of an origin goes; None: nothing is known yet."""
        return self.spill.table.get(self.regions[region])

    def names(self, blocks: Sequence[int], prompt_tokens: int) -> tuple[bytes, ...]:
        """Of the full blocks of a prompt, as cores and edges call them."""
        known, full = self._names, blocks[: prompt_tokens // self.setup.spec.block_tokens]
        for block in full:
            if block not in known:
                packed = block.to_bytes(12, "little", signed=True)
                known[block] = blake2b(packed, digest_size=HASH_BYTES).digest()
        return tuple(known[block] for block in full)

    def arrived(self, asked: Asked) -> None:
        """A request came in: nobody knows yet how long its answer will be."""
        amount_s = work_s(asked.prompt_tokens, ANSWER_GUESS_TOKENS, self.setup.spec)
        self._work.append((asked.origin, amount_s))
        self._arrived_s.append(asked.at_s)

    def tick(self, servers: Sequence[Server], now: float) -> None:
        """One step of the rule. Sketches pass load balancers: they are a second old."""
        self.sketches = self._sketches_next
        self._sketches_next = tuple(one.core.sketch if one.alive else b"" for one in servers)
        while self._arrived_s and self._arrived_s[0] < now - DEMAND_S:
            self._arrived_s.popleft()
            self._work.popleft()
        demand = dict.fromkeys(self.regions, 0.0)
        for origin, amount_s in self._work:
            demand[self.regions[origin]] += amount_s / min(DEMAND_S, now)
        supply = {}
        for number, region in enumerate(self.regions):
            here = [one.alive for one in servers if one.region == number]
            supply[region] = RegionSupply(float(len(here)), sum(here) / len(here))
        self.spill = step(self.spill, demand, supply, self._rtt_ms, now)
