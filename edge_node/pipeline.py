"""The way of a request through an edge. Start reading here.

    Ask ─► route (which core) ─► open on that core's warm link ─► commits ─► events ─► client
                                        ▲ hints ◄──────────────────┘
    core lost or refuses ─► next core, epoch + 1, with the ids committed so far

Everything that is decided is decided elsewhere, without IO: which core by `shared.routing`, what an
id does to an answer by `choice`, what to draft by `draft`. They meet the links in `flight`.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from random import Random

from firstlight.edge_node.answer import Ask, ChoiceStats, Event, Progress
from firstlight.edge_node.arrivals import Arrivals
from firstlight.edge_node.drafting import DraftingConfig, Make, drafters_of
from firstlight.edge_node.flight import Flight
from firstlight.edge_node.route import CoreRouter
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import FirstlightError
from firstlight.shared.history_file import History
from firstlight.shared.retry import RetryBudget
from firstlight.shared.types import Request


class Pipeline:
    """Opens answers. One an edge process."""

    def __init__(
        self,
        *,
        edge: str,
        region: str,
        router: CoreRouter,
        tokenizer_hash: str,
        eos_ids: frozenset[int],
        token_bytes: Callable[[int], bytes],
        salt_of: Callable[[str], bytes],
        rng: Random,
        history: History | None = None,
        drafters: Make | None = None,
    ) -> None:
        """`drafters`: what drafts for a choice; None: what drafts by default."""
        self.edge = edge
        self.region = region
        self.router = router
        self.token_bytes = token_bytes
        self.answers: set[MeshAnswer] = set()
        """Answers on their way; empty when the edge is idle."""
        self._tokenizer_hash = tokenizer_hash
        self._eos_ids = eos_ids
        self._salt_of = salt_of
        self.rng = rng
        self.history = history
        self.drafters = drafters or drafters_of(DraftingConfig(), answer_ids=tuple)
        self.retries = RetryBudget(monotonic_s())
        self.arrivals = Arrivals(monotonic_s())

    def open(self, ask: Ask) -> "MeshAnswer":
        """Route every choice of `ask`, and send it off. Raises `CapacityError`."""
        requests = {
            index: self._request(ask, ask.prompts[index // ask.n], index % ask.n)
            for index in ask.picked or range(len(ask.prompts) * ask.n)
        }
        self.arrivals.arrived(requests.values(), monotonic_s())
        answer = MeshAnswer(self, ask, requests)
        if not ask.timeline.streams:  # else it is gone on with: its client knows the first ones
            ask.timeline.name(answer.streams)
        for _ in ask.prompts:
            self.retries.request(monotonic_s())
        try:
            answer.start()
        except BaseException:
            answer.close()
            raise
        return answer

    def _request(self, ask: Ask, prompt: tuple[int, ...], choice: int) -> Request:
        return Request(
            id=secrets.token_hex(16),
            model=ask.model,
            tokenizer_hash=self._tokenizer_hash,
            salt=self._salt_of(ask.tenant),
            prompt=prompt,
            sampling=ask.sampling,
            seed=ask.seed,
            choice=choice,
            max_tokens=min(ask.max_tokens or ask.context_max, ask.context_max - len(prompt)),
            eos_ids=frozenset() if ask.ignore_eos else self._eos_ids,
            priority=ask.priority,
            budget_s=ask.budget_s,
        )


class MeshAnswer:
    """The choices of one ask, and the events that the client has not taken yet.

    What waits here is bounded by the credit of each choice: a core commits at most `CREDIT_TOKENS`
    beyond what the client took.
    """

    def __init__(self, pipeline: Pipeline, ask: Ask, requests: Mapping[int, Request]) -> None:
        self.streams = tuple(request.id for request in requests.values())
        self._pipeline = pipeline
        self._flights = {
            index: Flight(self, pipeline, ask, request, index)
            for index, request in requests.items()
        }
        self._running = len(requests)
        self._waiting: list[Event] = []
        self._handed: list[Event] = []
        """What the latest `take` gave; the next one says that the client has it."""
        self._error: FirstlightError | None = None
        self._wake = asyncio.Event()

    def start(self) -> None:
        """Send every choice on its way."""
        self._pipeline.answers.add(self)
        for flight in self._flights.values():
            flight.depart()

    async def take(self) -> list[Event]:
        """Events of all choices, in the order in which they came; nothing after the last."""
        for event in self._handed:
            self._flights[event.index].taken(event)
        self._handed = []
        while not self._waiting and self._running:
            if self._error is not None:
                raise self._error
            self._wake.clear()
            await self._wake.wait()
        self._handed, self._waiting = self._waiting, []
        self._running -= sum(event.finish is not None for event in self._handed)
        return self._handed

    def stats(self, index: int) -> ChoiceStats:
        """How choice `index` was served, so far."""
        return self._flights[index].choice.stats

    def progress(self, index: int, start: int = 0) -> Progress:
        """How far choice `index` has come."""
        return self._flights[index].choice.progress(start)

    def rewind(self, has: Mapping[int, int]) -> None:
        """Go on for another client."""
        self._handed = []
        self._waiting = [
            event for index, flight in self._flights.items() for event in flight.again(has[index])
        ]
        self._running = len(self._flights)

    def close(self) -> None:
        """Cancel what still runs."""
        self._pipeline.answers.discard(self)
        for flight in self._flights.values():
            flight.land()

    def push(self, event: Event) -> None:
        """From a flight: something for the client."""
        self._waiting.append(event)
        self._wake.set()

    def fail(self, error: FirstlightError) -> None:
        """From a flight: the answer cannot go on."""
        self._error = self._error or error
        self._wake.set()
