"""Real links, cores and a pipeline in one process, for tests of what happens between them."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import doubles

from firstlight.core_node.admission import Offer
from firstlight.core_node.backends.failing import FailingBackend
from firstlight.core_node.backends.native import NativeBackend
from firstlight.core_node.drafting import DraftingSection
from firstlight.core_node.history import CoreHistory, core_figures
from firstlight.core_node.meter import Meter
from firstlight.core_node.server import LinkServer
from firstlight.edge_node.answer import Ask, ChoiceStats, Event
from firstlight.edge_node.history import edge_figures
from firstlight.edge_node.pipeline import MeshAnswer, Pipeline
from firstlight.edge_node.route import CoreRouter
from firstlight.edge_node.upstream.pool import LinkPool
from firstlight.edge_node.view import MeshMemory
from firstlight.shared import rpc
from firstlight.shared.blocks import tenant_salt
from firstlight.shared.clock import monotonic_s
from firstlight.shared.engine.engine import Engine
from firstlight.shared.errors import PeerError
from firstlight.shared.faults import SWITCHES, Failing
from firstlight.shared.history import What
from firstlight.shared.history_file import History, history_of
from firstlight.shared.tls import NodeFiles, ensure_ca, issue
from firstlight.shared.types import (
    FinishReason,
    MeshView,
    NodeInfo,
    Report,
    Role,
    Sampling,
)

MODEL, TOKENIZER = "m", "t"
PROMPT = tuple(range(1, 40))
SAMPLING = Sampling(
    temperature=0.9, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.2
)
"""With penalties, which count ids: a core that takes over must count those of the one before."""


class SlowRunner(doubles.PagedRunner):
    """Takes a moment for each step, so that a test can act in the middle of an answer."""

    step_s = 0.004

    def run(self, plan):  # type: ignore[no-untyped-def]
        self.pause.wait(self.step_s)
        return super().run(plan)

    def __post_init__(self) -> None:
        from threading import Event

        super().__post_init__()
        self.pause = Event()


class Mesh:
    """Cores and one edge's pipeline, joined by real links."""

    def __init__(self, folder: Path, histories: Path | None = None) -> None:
        """`histories`: where the nodes note what happens, if they shall."""
        self._folder, self._histories = folder, histories
        self._noting = ExitStack()
        self._listening: dict[str, rpc.Listening] = {}
        self._seq = 0
        self.engines: dict[str, Engine] = {}
        self.servers: dict[str, LinkServer] = {}
        self.infos: dict[str, NodeInfo] = {}
        self.backends: list[NativeBackend] = []
        self.failing: dict[str, Failing] = {}
        """How each core fails now."""
        self.memory = MeshMemory()
        connect = partial(rpc.channel, files=self.files(Role.EDGE, "edge"), peer_role=Role.CORE)
        history = self._history("edge", Role.EDGE)
        self.pool = LinkPool(self.memory, connect, Random(1), history=history)
        self.pipeline = Pipeline(
            edge="edge",
            region="eu",
            router=CoreRouter(
                self.pool,
                region="eu",
                tokenizer_hash=TOKENIZER,
                rng=Random(2),
                sketch_of=self.memory.sketch,
            ),
            tokenizer_hash=TOKENIZER,
            eos_ids=frozenset({0}),
            token_bytes=lambda token: bytes([token]) if 97 <= token <= 122 else b"",
            salt_of=lambda tenant: tenant_salt(bytes(32), tenant=tenant),
            rng=Random(3),
            history=history,
        )
        if history is not None:
            history.figures = partial(edge_figures, self.pipeline.answers, self.pool)

    def _history(self, node: str, role: Role) -> History | None:
        return self._noting.enter_context(history_of(self._histories, node, role))

    def files(self, role: Role, node: str) -> NodeFiles:
        return issue(ensure_ca(self._folder / "ca"), role, node, ["127.0.0.1"], self._folder / node)

    async def start_core(self, name: str, region: str, **limits: object) -> None:
        given: dict[str, object] = {"blocks": 128, "context_max": 2048, "waiting_max": 32} | limits
        config = doubles.config(**given)
        engine = Engine(SlowRunner(config.blocks), config)
        offer = Offer((MODEL,), TOKENIZER, vocab=doubles.VOCAB, context_max=config.context_max)
        backend = NativeBackend(
            engine, offer, hint_ids_max=config.hint_ids_max, drafting=DraftingSection(ngram=False)
        )
        info = NodeInfo(name, Role.CORE, 1, region, "-", "class", (MODEL,), TOKENIZER, 2048)
        history = self._history(name, Role.CORE)
        story = None if history is None else CoreHistory(history, info.numerics_class)
        failing = self.failing[name] = Failing(can=SWITCHES)
        seen = FailingBackend(backend, failing)
        server = LinkServer(seen, info, Meter(MODEL), history=story)
        if history is not None:
            history.figures = partial(core_figures, backend, server)
            history.note(What.SAMPLE, facts=history.figures())
        backend.start(asyncio.get_running_loop(), server.deliver, lambda error: None)
        listening = await rpc.server("127.0.0.1:0", self.files(Role.CORE, name), server.add_to)
        server.info = self.infos[name] = replace(info, address=f"127.0.0.1:{listening.port}")
        self._listening[name], self.engines[name] = listening, engine
        self.servers[name] = server
        self.backends.append(backend)

    def announce(self, sketches: Mapping[str, bytes] | None = None) -> None:
        """What a load balancer would say; `sketches`: which prefixes cores say that they hold."""
        self._seq += 1
        known = sketches or {}
        reports = tuple(
            (Report(info, self._seq, sketch=known.get(name, b"")), 0.0)
            for name, info in self.infos.items()
        )
        self.memory.merge(MeshView("lb", self._seq, reports), monotonic_s())

    async def linked(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.pool.links) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def lose_link(self, name: str) -> None:
        """Break the link to a core that lives, and wait until the pool has noticed."""
        link = self.pool.link(name)
        assert link is not None
        link.fail(PeerError("broken by the test"))
        async with asyncio.timeout(5):
            while self.pool.link(name) is link:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def kill_core(self, name: str) -> None:
        await self._listening.pop(name).server.stop(0)

    async def stop(self) -> None:
        for name in list(self._listening):
            await self.kill_core(name)
        for backend in self.backends:
            await asyncio.to_thread(backend.stop)
        self._noting.close()


@asynccontextmanager
async def a_mesh(
    folder: Path, histories: Path | None = None, **limits: object
) -> AsyncIterator[Mesh]:
    mesh = Mesh(folder, histories)
    await mesh.start_core("core-eu", "eu", **limits)
    await mesh.start_core("core-us", "us", **limits)
    mesh.announce()
    running = asyncio.create_task(mesh.pool.run())
    try:
        await mesh.linked(2)
        yield mesh
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await mesh.stop()


def ask(seed: int = 1, **changes: object) -> Ask:
    values: dict[str, object] = {
        "tenant": "local",
        "model": MODEL,
        "prompts": (PROMPT,),
        "sampling": SAMPLING,
        "seed": seed,
        "max_tokens": 40,
        "context_max": 2048,
        "ignore_eos": True,
        "received_s": monotonic_s(),
    }
    return Ask(**(values | changes))  # type: ignore[arg-type]


async def events(answer: MeshAnswer) -> AsyncIterator[Event]:
    while taken := await answer.take():
        for event in taken:
            yield event


def alone(seed: int, max_tokens: int = 40) -> list[int]:
    """The ids of that ask from an engine that nothing disturbs."""
    request = doubles.request(prompt=PROMPT, sampling=SAMPLING, seed=seed, max_tokens=max_tokens)
    return doubles.alone(request)


async def read(
    mesh: Mesh, asked: Ask, at: int | None = None
) -> tuple[list[int], str, FinishReason | None, ChoiceStats]:
    """The whole answer; kills the core that serves it once `at` ids are here."""
    answer = mesh.pipeline.open(asked)
    ids: list[int] = []
    text, finish, killed = "", None, None
    try:
        async for event in events(answer):
            ids += event.ids
            text += event.text
            finish = event.finish
            if at is not None and len(ids) >= at and killed is None:
                killed = asyncio.create_task(mesh.kill_core(answer.stats(0).core))
    finally:
        answer.close()
    if killed is not None:
        await killed
    return ids, text, finish, answer.stats(0)


async def settled(mesh: Mesh, names: Sequence[str]) -> None:
    """Wait until these cores hold no sequence."""
    async with asyncio.timeout(5):
        while any(mesh.engines[name].has_work for name in names):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
