"""A client over TCP: what it keeps of connections that have ended."""

import asyncio

import pytest

from firstlight.infra.client.client import open_client
from firstlight.infra.client.tcp import TcpClient
from firstlight.shared.errors import PeerError


async def _answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
    await writer.drain()
    writer.close()


async def test_nothing_is_kept_of_connections_that_have_ended() -> None:
    server = await asyncio.start_server(_answer_once, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, open_client(f"http://127.0.0.1:{port}", "1") as client:
        assert isinstance(client, TcpClient)
        for _ in range(20):
            assert (await client.request("GET", "/")).body == b"ok"
        assert len(client._streams) <= 2


async def test_a_client_that_was_closed_meanwhile_is_an_error_of_ours() -> None:
    client = open_client("http://127.0.0.1:1", "1")
    await client.aclose()
    with pytest.raises(PeerError, match="this client was closed"):
        await client.request("GET", "/")
