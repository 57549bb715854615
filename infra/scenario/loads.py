"""Puts one load on the mesh: asks its questions, and notes what became of each.

Over the same client as `firstlight chat`, which goes on at another edge where a connection is lost.
A row's prompts are made of single tokens, exactly as many as it asks for, before its clock runs.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from firstlight.infra.bench.load.prompts import TracePrompts, Vocabulary
from firstlight.infra.bench.load.schedule import Arrival
from firstlight.infra.chat import CONNECT_S, Question, ask
from firstlight.infra.client.client import open_client
from firstlight.infra.client.connections import Connections
from firstlight.infra.client.response import Client
from firstlight.infra.client.tcp import tls_context
from firstlight.infra.reply import Reply
from firstlight.infra.scenario.figures import Outcome, Row
from firstlight.infra.scenario.scenario import LoadSpec
from firstlight.shared.breaker import Breaker
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import FirstlightError, PeerError
from firstlight.shared.history_file import History

Watch = Callable[[str, int, Reply], None]
"""Sees a row's stream, by its number, at each piece of its text. Called on the row's thread."""
SAID_CHARS_MAX = 200
CUT_SHORT = "the run ended before it did"


@dataclass(frozen=True, slots=True)
class Mesh:
    """What a load has to know of the mesh that it is put on."""

    urls: dict[str, str]
    """Of the edges, by node."""
    ca_file: Path
    key: str


def questions_of(spec: LoadSpec, vocabulary: Vocabulary, seed: int) -> list[Question]:
    """What a row asks. The same label, seed and sizes give the same."""
    arrivals = [Arrival(0.0, spec.prompt_tokens, spec.max_tokens)] * spec.count
    label = spec.prompt or spec.name
    prompts = TracePrompts(vocabulary, arrivals, seed, label)
    return [
        Question(
            prompts.text(number),
            api="completions",
            model=spec.model,
            seed=seed + number,
            temperature=spec.temperature,
            max_tokens=spec.max_tokens,
            hints=spec.hints,
            ignore_eos=True,
        )
        for number in range(spec.count)
    ]


async def put(
    spec: LoadSpec,
    questions: Sequence[Question],
    mesh: Mesh,
    history: History | None,
    watch: Watch,
    row: Row,
) -> None:
    """Ask all of it, into `row`; what goes wrong with a request stands in its outcome.

    Raises `FirstlightError` only where no connection could be made ahead.
    """
    async with AsyncExitStack() as stack:
        clients = _Clients(spec, mesh)
        stack.push_async_callback(clients.aclose)
        if spec.connection == "warm":
            await clients.warm_up()
        load = _Load(spec, questions, mesh, clients, history, watch, row)
        await (load.at_rate(spec.per_s) if spec.per_s is not None else load.in_turn())


class _Clients:
    """Connections to each edge of a row."""

    def __init__(self, spec: LoadSpec, mesh: Mesh) -> None:
        self._spec, self._mesh = spec, mesh
        self._tls = None if spec.http == "3" else tls_context(mesh.ca_file)
        self._of: dict[str, Connections] = {}
        self._breakers: dict[str, Breaker] = {}
        self._probing: set[str] = set()

    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Client]:
        """A client for one request.

        Raises `PeerError`; at once for an edge that failed a moment ago, and while somebody else
        finds out whether it is back.
        """
        if url not in self._breakers:
            self._breakers[url] = Breaker(monotonic_s())
            self._breakers[url].succeeded()  # worth asking until it fails
        breaker, found = self._breakers[url], self._connections(url)
        if breaker.open:
            await self._probe(url, breaker)
        try:
            async with found.warm() if self._spec.connection == "warm" else found.cold() as client:
                yield client
        except PeerError:
            breaker.failed(monotonic_s())
            raise

    async def _probe(self, url: str, breaker: Breaker) -> None:
        if url in self._probing or not breaker.allows(monotonic_s()):
            raise PeerError(f"{url} failed a moment ago")
        self._probing.add(url)
        try:
            await self._hello(url)
        except PeerError:
            breaker.failed(monotonic_s())
            raise
        finally:
            self._probing.discard(url)
        breaker.succeeded()

    async def warm_up(self) -> None:
        """As many connections to the first edge as the row will need at once."""
        url = self._mesh.urls[self._spec.edges[0]]
        await asyncio.gather(*(self._hello(url) for _ in range(self._spec.together)))

    async def _hello(self, url: str) -> None:
        async with self._connections(url).warm() as client:
            await client.request("GET", "/livez", {"authorization": f"Bearer {self._mesh.key}"})

    def _connections(self, url: str) -> Connections:
        if url not in self._of:
            http, ca_file = self._spec.http, self._mesh.ca_file

            def open_one() -> Client:
                return open_client(
                    url, http, ca_file=ca_file, tls=self._tls, connect_timeout_s=CONNECT_S
                )

            self._of[url] = Connections(open_one, http)
        return self._of[url]

    async def aclose(self) -> None:
        """Close all."""
        for connections in self._of.values():
            await connections.aclose()


class _Load:
    def __init__(
        self,
        spec: LoadSpec,
        questions: Sequence[Question],
        mesh: Mesh,
        clients: _Clients,
        history: History | None,
        watch: Watch,
        row: Row,
    ) -> None:
        self._spec, self._questions, self._mesh = spec, questions, mesh
        self._clients, self._history, self._watch = clients, history, watch
        self._row = row

    async def in_turn(self) -> None:
        """So many at the same time."""
        numbers = iter(range(len(self._questions)))

        async def worker() -> None:
            for number in numbers:
                if self._spec.idle_s:
                    await asyncio.sleep(self._spec.idle_s)
                await self._one(number, monotonic_s())

        await asyncio.gather(*(worker() for _ in range(self._spec.together)))

    async def at_rate(self, per_s: float) -> None:
        """Each at its time."""
        begun_s = monotonic_s()
        async with asyncio.TaskGroup() as group:
            for number in range(len(self._questions)):
                due_s = begun_s + number / per_s
                await asyncio.sleep(max(0.0, due_s - monotonic_s()))
                group.create_task(self._one(number, due_s))

    async def _one(self, number: int, due_s: float) -> None:
        outcome = Outcome(number, due_s, error=CUT_SHORT)
        self._row.outcomes.append(outcome)
        replies: list[Reply] = []

        def seen(text: str, reply: Reply) -> None:
            replies[:] = [reply]
            if text or len(reply.token_ids) > len(outcome.ids):
                outcome.seen(tuple(reply.token_ids), monotonic_s())
                self._watch(self._spec.name, number, reply)

        try:
            async with asyncio.timeout(self._spec.limit_s):
                asked = await ask(
                    self._mesh.urls[self._spec.edges[0]],
                    self._questions[number],
                    others=[self._mesh.urls[edge] for edge in self._spec.edges[1:]],
                    key=self._mesh.key,
                    on_text=seen,
                    history=self._history,
                    connect=self._clients.connect,
                )
        except TimeoutError:
            outcome.error = f"not complete after {self._spec.limit_s:g} s"
        except FirstlightError as error:
            outcome.error = error.message[:SAID_CHARS_MAX]
        else:
            outcome.ids, outcome.resumed = tuple(asked.reply.token_ids), asked.resumed
            outcome.error = incomplete(len(outcome.ids), self._spec)
            replies = [asked.reply]
        for reply in replies:
            _told(outcome, reply)


def incomplete(ids: int, spec: LoadSpec) -> str | None:
    """What is wrong with an answer of so many ids; None: nothing. All are asked to go on to the
    end, whatever the model would do."""
    asked = spec.max_tokens
    return None if ids == asked else f"complete with {ids} tokens, {asked} were asked for"


def _told(outcome: Outcome, reply: Reply) -> None:
    """What the edge said of an answer."""
    details = reply.details
    outcome.edge, outcome.core = str(details.get("edge", "")), str(details.get("core", ""))
    outcome.moved = int(details.get("moved") or 0)
    parts = details.get("ttft_ms")
    outcome.prefill_ms = parts.get("prefill") if isinstance(parts, Mapping) else None
    outcome.cached_tokens = int(details.get("cached_tokens") or 0)
    hints = reply.hint_totals()
    outcome.hints_accepted, outcome.hints_verified = hints["accepted"], hints["verified"]
