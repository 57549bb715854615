"""Our own rule in the simulator: the code that runs in edges, fed with what an edge knows.

It is not told what a core has cached: as an edge does, it goes by what it sent there itself, and by
what the cores say of their hot prefixes.
"""

from collections.abc import Sequence
from random import Random

from firstlight.infra.sim.mesh import Mesh
from firstlight.infra.sim.moves import MOVED_TOKEN_BYTES, NEAR_BYTES_PER_S
from firstlight.infra.sim.policies.policy import Ask, Pick, Policy, Seen
from firstlight.shared.blocks import BLOCK_TOKENS, CHECKPOINT_BLOCKS
from firstlight.shared.routing.choose import SHED, Cores, choose
from firstlight.shared.routing.cost import CoreState
from firstlight.shared.routing.ejection import CLEAN, Ejection, Mark
from firstlight.shared.routing.fetch import Source, Way
from firstlight.shared.routing.prefixes import BLOCKS_MAX, SentPrefixes
from firstlight.shared.routing.rank import Wanted
from firstlight.shared.routing.sketch import held_tokens, probes_of

BLOCK_MS = BLOCK_TOKENS * MOVED_TOKEN_BYTES / NEAR_BYTES_PER_S * 1000
"""Of a block on its way between cores of a region."""


class Firstlight(Policy):
    """One edge's share of the mesh's routing."""

    name = "firstlight"
    source = "shared/routing"
    has_network_term = True
    knobs = (0.0,)

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        spec = mesh.setup.spec
        self._size = spec.block_tokens
        # Of real blocks every eighth is remembered.
        blocks_max = BLOCKS_MAX * CHECKPOINT_BLOCKS * BLOCK_TOKENS // spec.block_tokens
        self._sent = SentPrefixes(blocks_max=blocks_max, block_tokens=spec.block_tokens)
        self._ejection = Ejection()
        self._expected: dict[int, int] = {}
        """Prompt tokens that each request was expected to find."""

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """As `edge_node.route` does it."""
        now = ask.now_s
        hashes = self._mesh.names(ask.blocks, ask.prompt_tokens)
        resident = self._resident(hashes, now)
        states = self._states(seen, resident, now)
        wanted = Wanted(
            home=self._mesh.regions[ask.origin],
            prompt_tokens=ask.prompt_tokens,
            spill=self._mesh.row(ask.origin),
            session=str(ask.session).encode(),
            prefixes=resident,
            prefix_traffic=self._traffic(hashes, resident, now),
        )
        route = choose(Cores.of(states), wanted, rng)
        if not route.candidates or route.reason.startswith(SHED):
            return Pick(None, reason=route.reason)
        best = route.candidates[0]
        self._expected[ask.request] = resident.get(best.core, 0)
        self._sent.sent(best.core, hashes, now)
        self._ejection.asked(best.core, now)
        fetches = best.cost.way != Way.RECOMPUTE
        return Pick(
            int(best.core),
            reason=f"{best.ttft_ms:.0f} ms, {best.reason}, {route.reason}",
            fetch_from=_holder(best.core, seen, resident) if fetches else None,
        )

    def _resident(self, hashes: Sequence[bytes], now: float) -> dict[str, int]:
        """By what was sent there, or by their own word."""
        resident, probes = self._sent.resident(hashes, now), probes_of(hashes, self._size)
        for server, sketch in enumerate(self._mesh.sketches):
            held = held_tokens(sketch, probes)
            if held > resident.get(str(server), 0):
                resident[str(server)] = held
        return resident

    def _traffic(self, hashes: Sequence[bytes], resident: dict[str, int], now: float) -> float:
        most = max(resident.values(), default=0)
        return self._sent.traffic(hashes, most, now) if most else 0.0

    def _states(
        self, seen: Sequence[Seen], resident: dict[str, int], now: float
    ) -> list[CoreState]:
        """All cores; each can be given what another one of its region has."""
        marks, most = self._ejection.marks(now), dict[int, int]()
        for one in seen:
            held = resident.get(str(one.server), 0)
            most[one.region] = max(held, most.get(one.region, 0))
        return [
            self._state(one, most[one.region], marks.get(str(one.server), CLEAN)) for one in seen
        ]

    def _state(self, one: Seen, near_tokens: int, mark: Mark) -> CoreState:
        local_ms = self._mesh.setup.matrix.rtt_ms[one.region][one.region]
        return CoreState(
            core=str(one.server),
            region=self._mesh.regions[one.region],
            load=one.load,
            rtt_ms=one.rtt_ms,
            age_s=one.age_s,
            unseen_opens=one.unseen_opens,
            unseen_prompt_tokens=one.unseen_prompt_tokens,
            ejected=mark.ejected,
            grown=mark.grown,
            penalty_ms=mark.penalty_ms,
            near_tokens=near_tokens,
            near=Source(local_ms, BLOCK_MS) if near_tokens else None,
        )

    def sent(self, ask: Ask, server: int) -> None:
        """Known since `pick`."""

    def first_token(self, ask: Ask, server: int, ttft_ms: float, now_s: float) -> None:
        """See `computed`."""

    def ended(self, ask: Ask, server: int, latency_ms: float, now_s: float) -> None:
        """Nothing is kept of it."""
        self._expected.pop(ask.request, None)

    def computed(self, ask: Ask, server: int, cached_tokens: int, now: float) -> None:
        """The first commit."""
        self._ejection.success(str(server), now)
        self._sent.computed(
            str(server),
            self._mesh.names(ask.blocks, ask.prompt_tokens),
            expected_tokens=self._expected.get(ask.request, 0),
            cached_tokens=cached_tokens,
            now=now,
        )

    def turned_away(self, server: int, now: float) -> None:
        """No room, whatever it said."""
        self._ejection.refused(str(server), now)

    def lost(self, server: int, now: float) -> None:
        """Its cache may be gone."""
        self._sent.forget(str(server))
        self._ejection.failure(str(server), cores=self._mesh.setup.servers, now=now)


def _holder(core: str, seen: Sequence[Seen], resident: dict[str, int]) -> int:
    """Who of its region has most of the prefix, as far as this edge knows."""
    region = next(one.region for one in seen if str(one.server) == core)
    here = [one for one in seen if one.region == region]
    return max(here, key=lambda one: resident.get(str(one.server), 0)).server
