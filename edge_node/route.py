"""From what the links say to the core that takes a choice: the shell around `shared.routing`.

It gathers the state of every core with a warm link, asks the rule, and remembers what was sent
where, so that the next decision sees it at once.
"""

from collections.abc import Callable, Iterable, Sequence
from random import Random

from firstlight.edge_node.choice import Assignment, Choice
from firstlight.edge_node.openai.routes import ModelEntry
from firstlight.edge_node.upstream.link import CoreLink
from firstlight.edge_node.upstream.pool import LinkPool
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import CapacityError, RequestError
from firstlight.shared.liveness import Lost
from firstlight.shared.retry import Life
from firstlight.shared.routing.choose import SHED, Wanted, choose
from firstlight.shared.routing.ejection import Ejection
from firstlight.shared.routing.prefixes import SentPrefixes
from firstlight.shared.routing.sketch import sketched_tokens
from firstlight.shared.types import Route

RETRY_AFTER_S = 1.0
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
    ) -> None:
        """`sketch_of`: which prefixes a core says that it holds."""
        self._pool = pool
        self._sketch_of = sketch_of
        self._region = region
        self._tokenizer_hash = tokenizer_hash
        self._rng = rng
        self._sent = SentPrefixes()
        self._ejection = Ejection()
        pool.on_lost = self._lost

    def models(self) -> list[ModelEntry]:
        """Models that some linked core serves, with the least context of those that do."""
        context: dict[str, int] = {}
        for link in self._links():
            for model in link.info.models:
                context[model] = min(link.info.context_max, context.get(model, 1 << 31))
        return [ModelEntry(id=model, context_max=tokens) for model, tokens in context.items()]

    def choose(self, choice: Choice, now: float) -> tuple[CoreLink, Assignment]:
        """The link to open `choice` on. Raises `CapacityError` if no core can take it now."""
        request = choice.request
        links = {link.info.node: link for link in self._links()}
        resident = self._resident(choice.block_hashes, links, now)
        states = [
            link.state(
                now,
                prefix_tokens=resident.get(core, 0),
                ejected=link.suspect or self._ejection.ejected(core, now),
                penalty_ms=self._ejection.penalty_ms(core, now),
            )
            for core, link in links.items()
        ]
        tokens = len(request.prompt) + request.max_tokens
        if states and all(0 < state.context_max < tokens for state in states):
            raise RequestError(
                f"{len(request.prompt)} prompt tokens and up to {request.max_tokens} more exceed "
                f"the context of every core",
                param="max_tokens",
                code="context_length_exceeded",
            )
        wanted = Wanted(
            home=self._region,
            prompt_tokens=len(request.prompt) + len(choice.stream.ids),
            context_tokens=tokens,
            model=request.model,
            numerics_class=choice.numerics_class,
            excluded=frozenset(choice.tried),
        )
        route = choose(states, wanted, self._rng)
        if not route.candidates or route.reason.startswith(SHED):
            raise CapacityError(route.reason, retry_after_s=RETRY_AFTER_S)
        best = route.candidates[0]
        core, link = best.core, links[best.core]
        self._sent.sent(core, choice.block_hashes, now)
        self._ejection.asked(core, now)
        assignment = Assignment(
            core=core,
            region=link.info.region,
            numerics_class=link.info.numerics_class,
            network_ms=link.rtt.ms,
            incarnation=link.info.incarnation,
            prefix_tokens=resident.get(core, 0),
            ttft_ms=best.ttft_ms,
            route=Route(route.candidates[:CANDIDATES_KEPT], route.reason),
        )
        return link, assignment

    def _resident(
        self, hashes: Sequence[bytes], cores: Iterable[str], now: float
    ) -> dict[str, int]:
        """Prompt tokens that each core should have: by what was sent there, or by its own word."""
        sent = self._sent.resident(hashes, now)
        return {
            core: max(sent.get(core, 0), sketched_tokens(self._sketch_of(core), hashes))
            for core in cores
        }

    def learn(
        self,
        assignment: Assignment,
        block_hashes: Sequence[bytes],
        *,
        cached_tokens: int,
        now: float,
    ) -> None:
        """The first commit said how many prompt tokens the core had cached."""
        self._ejection.success(assignment.core)
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
        cores = len(self._links())
        self._ejection.failure(core, cores=cores, now=monotonic_s(), proven=proven)

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
        return tuple((link.info.node, link.rtt.ms) for link in self._links() if link.rtt.measured)

    def _links(self) -> list[CoreLink]:
        return [
            link for link in self._pool.links if link.info.tokenizer_hash == self._tokenizer_hash
        ]
