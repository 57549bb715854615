"""A link whose call is ended by gRPC while it says goodbye."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

from core_bed import INFO, ByHand

from firstlight.core_node.meter import Meter
from firstlight.core_node.server import LinkServer
from firstlight.shared.proto import core_pb2
from firstlight.shared.tls import spiffe_uri
from firstlight.shared.types import Role


class BrokenContext:
    """An edge that was killed: the second write waits, and then fails."""

    def __init__(self) -> None:
        self.writes = 0
        self.waiting = asyncio.Event()
        self.broken = asyncio.Event()

    def auth_context(self) -> dict[str, list[bytes]]:
        name = spiffe_uri(Role.EDGE, "edge-eu").encode()
        return {"x509_subject_alternative_name": [name]}

    async def write(self, frame: core_pb2.CoreFrame) -> None:
        self.writes += 1
        if self.writes > 1:
            self.waiting.set()
            await self.broken.wait()
            raise RuntimeError("the peer is gone")


async def test_a_link_that_is_cancelled_twice_leaves_no_task_and_no_error_behind() -> None:
    server, context = LinkServer(ByHand(), INFO, Meter("smol")), BrokenContext()
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))

    async def silence() -> AsyncIterator[core_pb2.EdgeFrame]:
        await asyncio.Event().wait()
        yield core_pb2.EdgeFrame()

    before = asyncio.all_tasks()
    call = asyncio.create_task(server.Link(silence(), context))  # type: ignore[arg-type]
    await context.waiting.wait()
    call.cancel()
    await asyncio.sleep(0.01)
    call.cancel()
    context.broken.set()
    await asyncio.gather(call, return_exceptions=True)
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == before
    del call
    gc.collect()
    assert complaints == []
