"""The load balancer's HTTP server: where a client is."""

import asyncio
import socket
from typing import Any

import httpx

from firstlight.global_lb.app import _Http


async def _say_who_asks(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["client"][0].encode()})


async def test_a_client_is_where_its_packets_come_from_whatever_it_says() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = _Http(_say_who_asks, None)
        serving = asyncio.create_task(server.serve(listener))
        await server.started(serving)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(url, headers={"x-forwarded-for": "203.0.113.9"})
        server.stop()
        await serving
    assert answer.text == "127.0.0.1"
