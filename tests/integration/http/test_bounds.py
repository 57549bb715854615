"""Memory and requests stay bounded: slow readers, idle readers, large bodies and fields."""

import asyncio
import contextlib
from typing import Any

import psutil
import pytest
from http_bed import MIB, PROMPT_S, VERSIONS, Edge, h2_stream, h3_stream

from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import PeerError


@pytest.mark.parametrize("http", ["1", "2", "3"])
async def test_a_client_that_stops_reading_stops_the_application(edge: Edge, http: Any) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    async with contextlib.AsyncExitStack() as stack:
        if http == "3":
            client, protocol = await h3_stream(edge, "/flood")
            protocol.reading = False
            stack.push_async_callback(client.aclose)
        elif http == "2":
            _, _, writer = await h2_stream(edge, "/flood")
            stack.callback(writer.transport.abort)
        else:
            _, writer = await edge.connect_tcp("http/1.1")
            writer.write(b"GET /flood HTTP/1.1\r\nhost: localhost\r\n\r\n")
            stack.callback(writer.transport.abort)
        await edge.app.started.wait()
        await asyncio.sleep(0.5)
        reached = edge.app.sent_bytes
        await asyncio.sleep(0.3)
        assert edge.app.sent_bytes == reached
        assert reached <= (MIB // 4 if http == "3" else 16 * MIB)
        assert process.memory_info().rss - before < 24 * MIB


@pytest.mark.parametrize("http", ["2", "3"])
async def test_a_client_that_does_not_read_is_cancelled_after_the_stall_timeout(
    open_edge: Any, http: Any
) -> None:
    edge = await open_edge(stall_timeout_s=0.5)
    if http == "3":
        client, protocol = await h3_stream(edge, "/flood")
        protocol.reading = False
        closing = client.aclose
    else:
        _, _, writer = await h2_stream(edge, "/flood")

        async def closing() -> None:
            writer.transport.abort()

    await edge.app.started.wait()
    async with asyncio.timeout(3.0):
        while edge.fronts.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await closing()


async def test_a_body_that_stops_coming_is_answered_408(open_edge: Any) -> None:
    edge = await open_edge(stall_timeout_s=0.3)
    reader, writer = await edge.connect_tcp("http/1.1")
    writer.write(b"POST /size HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\nfive!")
    async with asyncio.timeout(3.0):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        while edge.fronts.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    writer.transport.abort()


async def test_an_upload_that_nobody_reads_does_not_block_other_clients(edge: Edge) -> None:
    async with edge.client("3") as blocked, edge.client("3") as other:
        upload = asyncio.ensure_future(blocked.request("POST", "/idle", {}, b"x" * 4 * MIB))
        await edge.app.started.wait()
        began_s = monotonic_s()
        assert (await other.request("GET", "/hello")).status == 200
        assert monotonic_s() - began_s < PROMPT_S
        assert (await upload).status == 200


async def test_an_honest_upload_of_20_megabytes_passes(open_edge: Any) -> None:
    edge = await open_edge(body_bytes_max=32 * MIB)
    async with edge.client("3") as client:
        client._configuration.max_datagram_size = 8000  # loopback carries it, with less CPU
        response = await client.request("POST", "/size", {}, b"x" * 20_000_000)
    assert response.body == b"20000000"


@pytest.mark.parametrize("http", VERSIONS)
async def test_a_body_above_the_limit_is_answered_413(open_edge: Any, http: Any) -> None:
    edge = await open_edge(body_bytes_max=100_000)
    async with edge.client(http) as client:
        response = await client.request("POST", "/size", {}, b"x" * 100_001)
        assert response.status == 413
        assert b"invalid_request_error" in response.body
        assert (await client.request("POST", "/size", {}, b"x" * 100_000)).body == b"100000"


async def test_a_chunked_body_above_the_limit_is_answered_413(open_edge: Any) -> None:
    edge = await open_edge(body_bytes_max=100_000)
    reader, writer = await edge.connect_tcp("http/1.1")
    writer.write(b"POST /size HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(4):
        writer.write(b"7530\r\n" + b"x" * 30_000 + b"\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.transport.abort()


@pytest.mark.parametrize("http", VERSIONS)
async def test_fields_above_the_limit_are_refused(edge: Edge, http: Any) -> None:
    async with edge.client(http) as client:
        asking = client.request("GET", "/hello", {"x-big": "y" * 40_000})
        if http == "3":
            with pytest.raises(PeerError, match="HEADERS frame of"):
                await asking
        else:
            assert (await asking).status == 431
    assert not edge.app.scopes
    async with edge.client(http) as client:
        assert (await client.request("GET", "/hello")).status == 200


async def test_too_many_requests_are_answered_503(open_edge: Any) -> None:
    edge = await open_edge(requests_max=2)
    async with edge.client("3") as client:
        waiting = [asyncio.ensure_future(client.request("GET", "/wait")) for _ in range(2)]
        await edge.app.started.wait()
        await asyncio.sleep(0.05)
        response = await client.request("GET", "/hello")
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await edge.app.gone.wait()
        await asyncio.sleep(0.05)
        assert (await client.request("GET", "/hello")).status == 200
