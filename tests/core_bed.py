"""A served core for tests of its link: real gRPC with mutual TLS, a backend driven by hand."""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from firstlight.core_node.admission import Offer
from firstlight.core_node.backends.backend import Broken, Deliver
from firstlight.core_node.meter import Meter
from firstlight.core_node.server import LinkServer
from firstlight.core_node.step_log import StepRecord
from firstlight.shared import rpc
from firstlight.shared.blocks import BlockCounts
from firstlight.shared.errors import CapacityError
from firstlight.shared.proto import core_pb2, core_pb2_grpc
from firstlight.shared.proto.convert import to_open
from firstlight.shared.stream import TokenStream
from firstlight.shared.tls import NodeFiles, ensure_ca, issue
from firstlight.shared.types import (
    Commit,
    Hint,
    Load,
    Mark,
    NodeInfo,
    Request,
    Role,
    Sampling,
    TokenLogprobs,
)

PROMPT = (1, 2, 3)
OFFER = Offer(("smol",), "abc123", vocab=1000, context_max=100_000)
INFO = NodeInfo("core-eu", Role.CORE, 7, "eu", "127.0.0.1:1", "class", ("smol",), "abc123", 100_000)


class ByHand:
    """A backend that does what the test says, and remembers what it was told."""

    offer = OFFER

    def __init__(self) -> None:
        self.streams: dict[str, TokenStream] = {}
        self.opened: list[tuple[str, int, int]] = []
        self.cancelled: list[str] = []
        self.credits: list[tuple[str, int]] = []
        self.hints: list[Hint] = []
        self.full = False
        self.at_once = False
        self.deliver: Deliver = lambda batch: None

    def start(self, loop: AbstractEventLoop, deliver: Deliver, broken: Broken) -> None:
        self.deliver = deliver

    def open(self, request: Request, epoch: int, committed: tuple[int, ...], credit: int) -> None:
        if self.full:
            raise CapacityError("64 requests wait, the most that may", retry_after_s=2.0)
        self.streams[request.id] = TokenStream(request.prompt, committed)
        self.opened.append((request.id, epoch, credit))

    def hint(self, hint: Hint) -> None:
        self.hints.append(hint)

    def credit(self, handle: str, position: int) -> None:
        self.credits.append((handle, position))

    def cancel(self, handle: str) -> bool:
        self.cancelled.append(handle)
        return not self.at_once

    def marks(self, handle: str) -> tuple[Mark, ...]:
        return (Mark("queued", 0.0, handle),)

    def flush_cache(self) -> None: ...

    def load(self) -> Load:
        return Load(running=len(self.opened) - len(self.cancelled), sequences_max=8)

    def blocks(self) -> BlockCounts:
        return BlockCounts()

    def host_blocks(self) -> BlockCounts:
        return BlockCounts()

    def steps(self) -> tuple[StepRecord, ...]:
        return ()

    def stop(self) -> None: ...

    def commit(self, handle: str, ids: tuple[int, ...], logprobs: int = 0) -> Commit:
        """What a step would bring for a sequence."""
        stream = self.streams[handle]
        position = stream.position
        entry = TokenLogprobs(-1.0, tuple((i, -float(i)) for i in range(logprobs)))
        entries = (entry,) * len(ids) if logprobs else ()
        return Commit(handle, self.epoch(handle), position, ids, stream.append(ids), entries)

    def epoch(self, handle: str) -> int:
        return next(epoch for known, epoch, _ in self.opened if known == handle)


class Edge:
    """A raw client of the link."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.frames: list[core_pb2.CoreFrame] = []

    async def send(self, **entries: Any) -> None:
        await self.call.write(core_pb2.EdgeFrame(**entries))

    async def read(self) -> core_pb2.CoreFrame:
        frame = await asyncio.wait_for(self.call.read(), 5)
        assert frame is not grpc.aio.EOF, (self.call.done(), await self.call.code())
        self.frames.append(frame)
        return frame

    async def until(self, wanted: Callable[[core_pb2.CoreFrame], object]) -> core_pb2.CoreFrame:
        """The first frame that has what is wanted."""
        while True:
            frame = await self.read()
            if wanted(frame):
                return frame

    async def failed(self) -> core_pb2.Failed:
        return (await self.until(lambda frame: frame.failed)).failed[0]

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """How the core ended the link."""
        try:
            while await asyncio.wait_for(self.call.read(), 5) is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return await self.call.code(), await self.call.details()


class Core:
    """A served core, and edges that connect to it."""

    def __init__(self, server: LinkServer, backend: ByHand, port: int, folder: Path) -> None:
        self.server, self.backend, self.port, self._folder = server, backend, port, folder

    def files(self, role: Role, node: str) -> NodeFiles:
        return issue(ensure_ca(self._folder / "ca"), role, node, ["127.0.0.1"], self._folder / node)

    @asynccontextmanager
    async def edge(self, node: str = "edge-eu", role: Role = Role.EDGE) -> AsyncIterator[Edge]:
        address = f"127.0.0.1:{self.port}"
        async with rpc.channel(address, self.files(role, node), Role.CORE) as channel:
            call = core_pb2_grpc.CoreStub(channel).Link()
            try:
                yield Edge(call)
            finally:
                call.cancel()

    async def told(self, condition: Callable[[], object]) -> None:
        """Wait until the backend was told something."""
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@asynccontextmanager
async def serve(folder: Path, waiting_bytes_max: int = 8 << 20) -> AsyncIterator[Core]:
    backend = ByHand()
    server = LinkServer(backend, INFO, Meter("smol"), waiting_bytes_max=waiting_bytes_max)
    backend.start(asyncio.get_running_loop(), server.deliver, lambda error: None)
    files = issue(ensure_ca(folder / "ca"), Role.CORE, "core-eu", ["127.0.0.1"], folder / "core")
    listening = await rpc.server("127.0.0.1:0", files, server.add_to)
    try:
        yield Core(server, backend, listening.port, folder)
    finally:
        await listening.server.stop(0)


def opening(request: str = "r", epoch: int = 1, committed: tuple[int, ...] = ()) -> core_pb2.Open:
    asked = Request(
        id=request,
        model="smol",
        tokenizer_hash="abc123",
        salt=bytes(16),
        prompt=PROMPT,
        sampling=Sampling(),
        seed=5,
        choice=0,
        max_tokens=50_000,
        eos_ids=frozenset(),
    )
    return to_open(asked, epoch, committed)


async def opened(core: Core, edge: Edge, *requests: str) -> list[str]:
    """Open requests; returns their handles."""
    before = len(core.backend.opened)
    await edge.send(opens=[opening(request) for request in requests])
    await core.told(lambda: len(core.backend.opened) == before + len(requests))
    return [handle for handle, _, _ in core.backend.opened[before:]]
