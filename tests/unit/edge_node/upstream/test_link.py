"""The edge's end of a link: what it counts, and whom it takes for a core."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import doubles
import grpc.aio

from firstlight.edge_node.upstream.link import UNCOUNTED_MAX, WRITE_BROKE, CoreLink
from firstlight.edge_node.upstream.warmth import KIB, LinksConfig
from firstlight.edge_node.view import MeshMemory
from firstlight.shared.errors import DiedError, FirstlightError, PeerError
from firstlight.shared.proto import core_pb2, core_pb2_grpc
from firstlight.shared.proto.convert import to_node
from firstlight.shared.types import Commit, Done, Failed, NodeInfo, Role

CORE = NodeInfo("core", Role.CORE, 1, "eu", "127.0.0.1:1")


class Silent:
    """A receiver that has no use for what it hears."""

    def committed(self, commit: Commit) -> None: ...

    def failed(self, failed: Failed) -> None: ...

    def done(self, done: Done) -> None: ...

    def lost(self, core: str, error: FirstlightError) -> None: ...


class Rude(core_pb2_grpc.CoreServicer):
    """Sends its load, and never says what it is."""

    async def Link(self, frames: Any, context: Any) -> AsyncIterator[core_pb2.CoreFrame]:
        while True:
            yield core_pb2.CoreFrame(load=core_pb2.Load(steps=1))
            await asyncio.sleep(0.05)


async def test_prompts_are_counted_when_more_are_open_than_are_remembered() -> None:
    async with grpc.aio.insecure_channel(CORE.address) as channel:
        link = CoreLink(CORE, channel, MeshMemory())
        for number in range(UNCOUNTED_MAX + 44):
            one = doubles.request(f"r{number}", prompt=(1, 2, 3))
            link.open(one, 1, (), Silent(), budget_s=1.0)
        state = link.state(link.load_at_s)
        assert state.unseen_opens == UNCOUNTED_MAX + 44
        assert state.unseen_prompt_tokens == 3 * UNCOUNTED_MAX


async def life_with(core: core_pb2_grpc.CoreServicer) -> tuple[CoreLink, FirstlightError]:
    """The link to such a core, and why it ended."""
    server = grpc.aio.server()
    core_pb2_grpc.add_CoreServicer_to_server(core, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            link = CoreLink(CORE, channel, MeshMemory())
            return link, await asyncio.wait_for(link.run(), 4)
    finally:
        await server.stop(0)


async def test_a_core_that_does_not_say_what_it_is_is_left() -> None:
    link, reason = await life_with(Rude())
    assert "no welcome" in reason.message
    assert not link.welcomed


class Garbled(core_pb2_grpc.CoreServicer):
    """Says what it is, and then a load that cannot be."""

    async def Link(self, frames: Any, context: Any) -> AsyncIterator[core_pb2.CoreFrame]:
        yield core_pb2.CoreFrame(welcome=core_pb2.Welcome(info=to_node(CORE)))
        load = core_pb2.Load(steps=1)
        load.step_ms.add(rows=1, ms=float("nan"))
        while True:
            yield core_pb2.CoreFrame(load=load)
            await asyncio.sleep(0.05)


async def test_a_core_whose_load_cannot_be_is_left_for_that_reason() -> None:
    link, reason = await life_with(Garbled())
    assert link.welcomed
    assert "load.step_ms is nan" in reason.message


class Far(core_pb2_grpc.CoreServicer):
    """Answers pings as if it were far away, and can stop reading in the middle of padding."""

    def __init__(self, stops_after_bytes: int | None = None) -> None:
        self.pieces: list[int] = []
        """Padding that was to be answered, whole."""
        self.padding_bytes = 0
        self.reads, self.stopped, self.warmed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.before_open: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Bytes of padding that came before the first open."""
        self._stops_after_bytes = stops_after_bytes

    async def Link(self, frames: Any, context: Any) -> None:
        await context.write(core_pb2.CoreFrame(welcome=core_pb2.Welcome(info=to_node(CORE))))
        piece = 0
        async for frame in frames:
            if frame.opens and not self.before_open.done():
                self.before_open.set_result(self.padding_bytes)
            size = len(frame.ping.padding)
            self.padding_bytes, piece = self.padding_bytes + size, piece + size
            if self._stops_after_bytes and self.padding_bytes > self._stops_after_bytes:
                self.stopped.set()
                await self.reads.wait()
            if frame.ping.id:
                if size:
                    self.pieces.append(piece)
                    piece = 0
                    if len(self.pieces) == 2:
                        self.warmed.set()
                await asyncio.sleep(0.1)
                await context.write(core_pb2.CoreFrame(pong=frame.ping.id, load=core_pb2.Load()))


@contextlib.asynccontextmanager
async def linked(core: Far, config: LinksConfig) -> AsyncIterator[CoreLink]:
    """A link that runs to such a core, which takes 64 KB before it has read them."""
    server = grpc.aio.server(options=[("grpc.http2.bdp_probe", 0)])
    core_pb2_grpc.add_CoreServicer_to_server(core, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            link = CoreLink(CORE, channel, MeshMemory(), config=config)
            running = asyncio.create_task(link.run())
            try:
                yield link
            finally:
                link.fail(PeerError("the test is over"))
                await running
    finally:
        await server.stop(0)


async def test_a_far_core_gets_padding_before_anybody_asks_and_more_once_that_is_answered() -> None:
    core = Far()
    async with linked(core, LinksConfig(window_bytes=64 * KIB)) as link:
        async with asyncio.timeout(10):
            await core.warmed.wait()
        assert core.pieces[0] == 16 * KIB
        assert 50 < link.rtt.ms < 5000


async def test_what_is_to_be_said_does_not_wait_for_padding() -> None:
    core = Far(stops_after_bytes=256 * KIB)
    config = LinksConfig(window_bytes=1024 * KIB)
    async with linked(core, config) as link, asyncio.timeout(8):
        await core.stopped.wait()
        link.open(doubles.request("r", prompt=(1, 2, 3)), 1, (), Silent(), budget_s=1.0)
        core.reads.set()
        assert await core.before_open <= (256 + 128) * KIB


class Unread(core_pb2_grpc.CoreServicer):
    """Ends the link, as a core does whose edge does not read."""

    async def Link(self, frames: Any, context: Any) -> AsyncIterator[core_pb2.CoreFrame]:
        yield core_pb2.CoreFrame(welcome=core_pb2.Welcome(info=to_node(CORE)))
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "edge does not read")


async def test_a_core_that_ends_a_link_has_not_died() -> None:
    _, reason = await life_with(Unread())
    assert isinstance(reason, PeerError)
    assert not isinstance(reason, DiedError)


PROCESS = """
import asyncio, grpc.aio
from firstlight.shared.proto import core_pb2, core_pb2_grpc
from firstlight.shared.proto.convert import to_node
from firstlight.shared.types import NodeInfo, Role

class Core(core_pb2_grpc.CoreServicer):
    async def Link(self, frames, context):
        info = to_node(NodeInfo("core", Role.CORE, 1, "eu", "127.0.0.1:1"))
        yield core_pb2.CoreFrame(welcome=core_pb2.Welcome(info=info))
        async for frame in frames:
            yield core_pb2.CoreFrame(pong=frame.ping.id)

async def main():
    server = grpc.aio.server()
    core_pb2_grpc.add_CoreServicer_to_server(Core(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_core_whose_process_is_killed_has_died() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROCESS, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            port = int(await process.stdout.readline())
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                link = CoreLink(CORE, channel, MeshMemory())
                running = asyncio.create_task(link.run())
                while not link.up:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                process.kill()
                assert isinstance(await running, DiedError)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_connection_that_our_own_write_found_gone_is_a_death_too() -> None:
    nothing: Any = None
    link = CoreLink(CORE, nothing, nothing)
    for code, said, died in (
        (grpc.StatusCode.INTERNAL, WRITE_BROKE, True),
        (grpc.StatusCode.INTERNAL, "the core failed on a frame: KeyError", False),
        (grpc.StatusCode.UNAVAILABLE, "Connection reset", True),
    ):
        none = grpc.aio.Metadata()
        error = grpc.aio.AioRpcError(code, none, none, details=said)
        assert isinstance(link._cause(error), DiedError) == died
