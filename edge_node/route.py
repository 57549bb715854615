"""From what the links say to the core that takes a choice: the shell around `shared.routing`.

It tells the rule which cores have a warm link, and how those stand that the rule looks at, and
remembers what was sent where, so that the next decision sees it at once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random

from firstlight.edge_node import meter
from firstlight.edge_node.choice import Assignment, Choice
from firstlight.edge_node.openai.routes import ModelEntry
from firstlight.edge_node.upstream.link import CoreLink
from firstlight.edge_node.upstream.pool import ByRegion, LinkPool
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import CapacityError, RequestError
from firstlight.shared.liveness import Lost
from firstlight.shared.retry import Life
from firstlight.shared.routing.choose import (
    ROUTE_MIN,
    SHED,
    WAIT_MS,
    Cores,
    choose,
    region_of,
)
from firstlight.shared.routing.cost import CoreState
from firstlight.shared.routing.ejection import CLEAN, Ejection
from firstlight.shared.routing.prefixes import SentPrefixes
from firstlight.shared.routing.rank import COLD, Wanted, some
from firstlight.shared.routing.reserve import Reservations
from firstlight.shared.routing.sketch import Probes, held_tokens, probes_of
from firstlight.shared.routing.spill import Row
from firstlight.shared.types import Route

RETRY_AFTER_S = 1.0
SKETCHES_MAX = 128
"""Cores of the drawn region and home together whose sketches are looked into for a prompt, and as
many of all others; of more some at random, as many of each region."""
CANDIDATES_KEPT = 4
"""Of a route, for whoever asks later why a core was chosen."""


class CoreRouter:
    """Chooses cores for this edge's choices."""

    def __init__(
        self,
        pool: LinkPool,
        *,
        region: str,
        tokenizer_hash: str,
        rng: Random,
        sketch_of: Callable[[str], bytes] = lambda core: b"",
        spill_row: Callable[[], Row | None] = lambda: None,
    ) -> None:
        """`sketch_of`: which prefixes a core says that it holds. `spill_row`: where work of this
        region goes, if anyone has said so."""
        self._pool = pool
        self._sketch_of = sketch_of
        self._spill_row = spill_row
        self._region = region
        self._tokenizer_hash = tokenizer_hash
        self._rng = rng
        self._sent = SentPrefixes()
        self._ejection = Ejection()
        self._reserved = Reservations()
        pool.on_lost = self._lost

    def models(self) -> list[ModelEntry]:
        """Models that some linked core serves, with the least context of those that do."""
        context: dict[str, int] = {}
        for link in _links(self._linked()):
            for model in link.info.models:
                context[model] = min(link.info.context_max, context.get(model, 1 << 31))
        return [ModelEntry(id=model, context_max=tokens) for model, tokens in context.items()]

    @contextmanager
    def place(self, choice: Choice, now: float) -> Iterator[tuple[CoreLink, Assignment]]:
        """The link to open `choice` on, while the block runs. Raises `CapacityError` if no core
        can take it now.

        The place is reserved until the block ends: then the link counts the choice itself. If the
        block raises, nothing was sent, and nothing is remembered of it.
        """
        link, assignment = self._choose(choice, now)
        core, hashes = assignment.core, choice.block_hashes
        lease = self._reserved.reserve(core, len(choice.request.prompt) + len(choice.stream.ids))
        self._sent.sent(core, hashes, now)
        try:
            yield link, assignment
            self._ejection.asked(core, now)
        except BaseException:
            self._sent.withdraw(core, hashes, now)
            raise
        finally:
            lease.give_back()

    def _choose(self, choice: Choice, now: float) -> tuple[CoreLink, Assignment]:
        request, linked = choice.request, self._linked()
        tokens = len(request.prompt) + request.max_tokens
        if linked and all(0 < link.info.context_max < tokens for link in _links(linked)):
            raise RequestError(
                f"{len(request.prompt)} prompt tokens and up to {request.max_tokens} more exceed "
                f"the context of every core",
                param="max_tokens",
                code="context_length_exceeded",
            )
        row = self._spill_row()
        if row is not None and choice.assignment is not None:
            row = replace(row, shed=0.0)  # what was taken in is not shed any more
        wanted = Wanted(
            home=self._region,
            prompt_tokens=len(request.prompt) + len(choice.stream.ids),
            context_tokens=tokens,
            model=request.model,
            numerics_class=choice.numerics_class,
            excluded=frozenset(choice.tried),
            spill=row,
            session=choice.session,
            named_max=CANDIDATES_KEPT,
        )
        route, resident = self._route(wanted, linked, choice.block_hashes, now)
        if not route.candidates or route.reason.startswith(SHED):
            raise CapacityError(route.reason, retry_after_s=RETRY_AFTER_S)
        best = route.candidates[0]
        link = linked[best.region][best.core]
        return link, Assignment(
            core=best.core,
            region=link.info.region,
            numerics_class=link.info.numerics_class,
            network_ms=link.rtt.ms,
            incarnation=link.info.incarnation,
            prefix_tokens=resident.get(best.core, 0),
            ttft_ms=best.ttft_ms,
            route=route,
        )

    def _route(
        self, wanted: Wanted, linked: ByRegion, hashes: Sequence[bytes], now: float
    ) -> tuple[Route, dict[str, int]]:
        """The route, and the prompt tokens that cores should have.

        The region that is drawn is asked first, with this edge's own, and no other unless requests
        wait there.
        """
        drawn, wanted = region_of(wanted, self._rng)
        asked = () if drawn is None else (drawn, self._region)
        near = {region: here for region, here in linked.items() if region in asked}
        far = {region: here for region, here in linked.items() if region not in asked}
        resident, probes = self._sent.resident(hashes, now), probes_of(hashes)
        self._ask(near, probes, resident)
        enough = sum(map(len, near.values())) >= ROUTE_MIN
        if far and enough and wanted.numerics_class is None:
            route = self._route_among(wanted, near, hashes, resident, now)
            first = next(iter(route.candidates), None)
            if first and first.reason == COLD and first.cost.queue_ms <= WAIT_MS:
                return route, resident
        self._ask(far, probes, resident)
        return self._route_among(wanted, linked, hashes, resident, now), resident

    def _ask(self, linked: ByRegion, probes: Probes, resident: dict[str, int]) -> None:
        """Add to `resident` what cores say that they hold, where it is more."""
        each = SKETCHES_MAX // max(1, len(linked))
        for here in linked.values() if probes else ():
            for core in here if len(here) <= each else some(list(here), each, self._rng):
                held = held_tokens(self._sketch_of(core), probes)
                if held > resident.get(core, 0):
                    resident[core] = held

    def _route_among(
        self,
        wanted: Wanted,
        linked: ByRegion,
        hashes: Sequence[bytes],
        resident: dict[str, int],
        now: float,
    ) -> Route:
        most = max(resident.values(), default=0)
        traffic = self._sent.traffic(hashes, most, now) if most else 0.0
        known = replace(wanted, prefixes=resident, prefix_traffic=traffic)
        return choose(Cores(linked, self._state_of(now)), known, self._rng)

    def _state_of(self, now: float) -> Callable[[str], CoreState]:
        """How a core stands, with what is held against it, and what is reserved."""
        marks, reserved = self._ejection.marks(now), self._reserved.by_core()

        def stated(core: str) -> CoreState:
            link = self._pool.link(core)
            assert link is not None, core
            state = link.state(now)
            if core not in marks and core not in reserved:
                return state
            mark, (opens, tokens) = marks.get(core, CLEAN), reserved.get(core, (0, 0))
            return replace(
                state,
                ejected=state.ejected or mark.ejected,
                penalty_ms=mark.penalty_ms,
                grown=mark.grown,
                unseen_opens=state.unseen_opens + opens,
                unseen_prompt_tokens=state.unseen_prompt_tokens + tokens,
            )

        return stated

    def learn(
        self,
        assignment: Assignment,
        block_hashes: Sequence[bytes],
        *,
        cached_tokens: int,
        now: float,
    ) -> None:
        """The first commit said how many prompt tokens the core had cached."""
        self._ejection.success(assignment.core, now)
        self._sent.computed(
            assignment.core,
            block_hashes,
            expected_tokens=assignment.prefix_tokens,
            cached_tokens=cached_tokens,
            now=now,
        )

    def refused(self, link: CoreLink, now: float) -> None:
        """The core said that it had no room for a choice."""
        has_room = 2 * link.load.in_flight < link.load.sequences_max and not link.load.draining
        self._ejection.refused(link.info.node, now, has_room=has_room)

    def failed(self, core: str, *, proven: bool = False) -> None:
        """The core failed a choice by its own fault."""
        cores = sum(map(len, self._linked().values()))
        if self._ejection.failure(core, cores=cores, now=monotonic_s(), proven=proven):
            meter.ejected()

    def _lost(self, core: str, lost: Lost | None) -> None:
        """The link broke: one failure, however many choices were on it; the cache may be gone."""
        self._sent.forget(core)
        self.failed(core, proven=lost is Lost.FORGOTTEN)

    def living(self) -> frozenset[Life]:
        """Cores that are linked and stay, by the life that is heard."""
        links = [link for link in self._pool.links if not link.load.draining]
        return frozenset((link.info.node, link.info.incarnation) for link in links)

    def round_trips(self) -> tuple[tuple[str, float], ...]:
        """Measured round trip to each linked core, ms."""
        return tuple(
            (link.info.node, link.rtt.ms) for link in _links(self._linked()) if link.rtt.measured
        )

    def _linked(self) -> ByRegion:
        return self._pool.by_region(self._tokenizer_hash)


def _links(linked: ByRegion) -> Iterator[CoreLink]:
    return (link for here in linked.values() for link in here.values())
