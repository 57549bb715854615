"""A client that goes in any way is noticed at once, over each version and TCP server."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aioquic.h3.connection import ErrorCode
from http_bed import PROMPT_S, Edge, h2_stream, h3_stream

from firstlight.infra.client.http3 import Http3Client
from firstlight.shared.clock import monotonic_s


async def read_events(client: Http3Client, path: str) -> None:
    async with client.stream("GET", path) as response:
        async for _ in response.events():
            pass


class Cancel:
    """Each way in which a client goes: starts a request, then breaks it off."""

    def __init__(self, edge: Edge, path: str) -> None:
        self.edge = edge
        self.path = path

    async def _h3(self, how: Callable[[Http3Client, Any], Any]) -> None:
        client = self.edge.client("3")
        protocol = await client.connect()
        asking = asyncio.ensure_future(read_events(client, self.path))
        await self.edge.app.started.wait()
        await asyncio.sleep(0.05)
        await how(client, protocol)
        await self._wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await client.aclose()

    async def _wait(self, timeout_s: float = PROMPT_S) -> None:
        self.began_s = monotonic_s()
        async with asyncio.timeout(timeout_s):
            await self.edge.app.gone.wait()

    async def stop_sending(self) -> None:
        async def how(client: Http3Client, protocol: Any) -> None:
            protocol.quic.stop_stream(0, ErrorCode.H3_REQUEST_CANCELLED)
            protocol.transmit()

        await self._h3(how)

    async def close(self) -> None:
        await self._h3(lambda client, protocol: client.abort())

    async def leave(self) -> None:
        """What our own client does when its caller leaves the block."""
        async with self.edge.client("3") as client:
            asking = asyncio.ensure_future(read_events(client, self.path))
            await self.edge.app.started.wait()
            await asyncio.sleep(0.05)
            asking.cancel()
            await self._wait()

    async def reset(self) -> None:
        client, protocol = await h3_stream(self.edge, self.path, end=False)
        await self.edge.app.started.wait()
        protocol.quic.reset_stream(0, ErrorCode.H3_REQUEST_CANCELLED)
        protocol.transmit()
        await self._wait()
        await client.aclose()

    async def idle(self) -> None:
        async def how(client: Http3Client, protocol: Any) -> None:
            await client.vanish()
            await self._wait(4.0)

        await self._h3(how)

    async def h2_rst(self) -> None:
        connection, _, writer = await h2_stream(self.edge, self.path)
        await self.edge.app.started.wait()
        await asyncio.sleep(0.05)
        connection.reset_stream(1, 8)
        writer.write(connection.data_to_send())
        await self._wait()
        writer.close()

    async def h2_close(self) -> None:
        _, _, writer = await h2_stream(self.edge, self.path)
        await self.edge.app.started.wait()
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await self._wait()

    async def h1_close(self) -> None:
        _, writer = await self.edge.connect_tcp("http/1.1")
        writer.write(f"GET {self.path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await self.edge.app.started.wait()
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await self._wait()


CAUSES = ["stop_sending", "reset", "close", "leave", "idle", "h2_rst", "h2_close", "h1_close"]


@pytest.mark.parametrize("path", ["/wait", "/sse?events=500&wait_s=0.02"])
@pytest.mark.parametrize("cause", CAUSES)
async def test_a_client_that_goes_in_any_way_is_noticed_at_once(
    open_edge: Any, cause: str, path: str
) -> None:
    edge = await open_edge(idle_timeout_s=1.0 if cause == "idle" else 25.0)
    cancel = Cancel(edge, path)
    await getattr(cancel, cause)()
    assert edge.app.gone.is_set()
    await asyncio.sleep(0.05)
    assert edge.fronts.requests == 0


@pytest.mark.parametrize("path", ["/wait", "/sse?events=500&wait_s=0.02"])
async def test_uvicorn_in_place_of_granian_notices_a_closed_connection(
    open_edge: Any, path: str
) -> None:
    edge = await open_edge(tcp="uvicorn")
    async with edge.client("1") as client:
        assert (await client.request("GET", "/hello")).status == 200
    await Cancel(edge, path).h1_close()
    assert edge.app.gone.is_set()
