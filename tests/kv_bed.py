"""Cores in this process that lend each other KV: real gRPC and loads, a runner without a model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import sleep

import grpc.aio
from doubles import PagedRunner, config

from firstlight.core_node.admission import Offer
from firstlight.core_node.backends.backend import Batch
from firstlight.core_node.backends.native import NativeBackend
from firstlight.core_node.config import KvSection
from firstlight.core_node.drafting import DraftingSection
from firstlight.core_node.kv.disk import DiskTier
from firstlight.core_node.kv.index import connect_index
from firstlight.core_node.kv.memory import KvMemory
from firstlight.core_node.kv.seal import BlockSeals
from firstlight.shared import rpc
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.plan import StepPlan, StepRows
from firstlight.shared.tls import ensure_ca, issue
from firstlight.shared.types import MeshView, NodeInfo, Report, Request, Role

NAMESPACE = "0123456789abcdef"
KEY = bytes(32)


class PacedRunner(PagedRunner):
    """Takes the time that it says it took."""

    def run(self, plan: StepPlan) -> StepRows:
        ran = super().run(plan)
        sleep(ran.ms / 1000)
        return ran


@dataclass
class Core:
    """One core, and what its engine delivered."""

    info: NodeInfo
    backend: NativeBackend
    runner: PacedRunner
    memory: KvMemory
    server: grpc.aio.Server
    batches: list[Batch] = field(default_factory=list)

    async def ask(self, one: Request) -> list[int]:
        """Its answer to a request, to the end."""
        self.backend.open(one, 1, (), 10_000)
        async with asyncio.timeout(20):
            while not any(done.request == one.id for b in self.batches for done in b.done):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        return [token for commit in self._commits(one.id) for token in commit.ids]

    def cached_tokens(self, handle: str) -> int:
        """Prompt tokens that it had not to compute."""
        (count,) = [c.cached_tokens for c in self._commits(handle) if c.cached_tokens is not None]
        return count

    def _commits(self, handle: str) -> list:
        return [c for batch in self.batches for c in batch.commits if c.request == handle]


@asynccontextmanager
async def core(
    name: str,
    folder: Path,
    section: KvSection | None = None,
    *,
    disk: DiskTier | None = None,
    namespace: str = NAMESPACE,
    key: bytes = KEY,
    host_blocks: int = 64,
) -> AsyncIterator[Core]:
    """A core that serves its blocks, and finds those of others as `section` says."""
    given = section or KvSection()
    limits = config(blocks=64, context_max=512, host_blocks=host_blocks)
    runner = PacedRunner(limits.blocks)
    engine = Engine(runner, limits)
    backend = NativeBackend(
        engine,
        Offer(("m",), "t", runner.vocab, 512),
        hint_ids_max=7,
        drafting=DraftingSection(ngram=False),
        below=disk,
    )
    files = issue(ensure_ca(folder / "ca"), Role.CORE, name, ["127.0.0.1"], folder / name)
    info = NodeInfo(name, Role.CORE, 1, "eu", "127.0.0.1:0", "class", ("m",), "t", 512)
    memory = KvMemory(
        given.index,
        connect_index("kv.index", given.index),
        info,
        backend,
        disk=disk,
        seals=BlockSeals((key,), namespace),
        block_bytes=engine.block_bytes,
        connect=partial(rpc.channel, files=files, peer_role=Role.CORE),
    )
    listening = await rpc.server("127.0.0.1:0", files, memory.service.add_to)
    info = NodeInfo(name, Role.CORE, 1, "eu", f"127.0.0.1:{listening.port}", "class", ("m",), "t")
    made = Core(info, backend, runner, memory, listening.server)

    def deliver(batch: Batch) -> None:
        made.batches.append(batch)
        memory.deliver(batch)

    broken: list[BaseException] = []
    backend.start(asyncio.get_running_loop(), deliver, broken.append)
    stop = asyncio.Event()
    try:
        async with memory.serving(stop):
            yield made
            stop.set()
    finally:
        await listening.server.stop(0)
        backend.stop()
    assert not broken, broken


def acquaint(*cores: Core) -> None:
    """What a load balancer would tell each of them."""
    view = MeshView("lb", 1, tuple((Report(one.info, 1), 0.0) for one in cores))
    for one in cores:
        one.memory.seen(view)
