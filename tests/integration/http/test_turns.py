"""What a packet sets off goes before the packet is acknowledged: an answer does not wait for it."""

import asyncio
from typing import Any

import pytest
from http_bed import Edge


def noted(turns: list[str], what: str, call: Any) -> Any:
    return lambda *args: (turns.append(what), call(*args))


async def test_what_a_request_sets_off_goes_before_its_packet_is_acknowledged(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    asked = asyncio.Event()

    async def send_on() -> None:
        await asked.wait()
        turns.append("sent on")

    async def app(receive: Any, send: Any) -> None:
        asked.set()
        await asyncio.sleep(0.05)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with edge.client("3") as client:
        await client.request("GET", "/hello")
        await asyncio.sleep(0.05)
        server = edge.fronts._http3
        assert server is not None
        monkeypatch.setattr(edge.app, "idle", app)
        monkeypatch.setattr(server, "_flush", noted(turns, "acknowledged", server._flush))
        waiting = asyncio.create_task(send_on())
        await asyncio.sleep(0)
        await client.request("GET", "/idle")
        await waiting
    assert turns[:2] == ["sent on", "acknowledged"]


async def test_a_reader_is_woken_before_what_it_reads_is_acknowledged(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    async with edge.client("3") as client:
        protocol = await client.connect()
        received = noted(turns, "datagram", protocol.datagram_received)
        monkeypatch.setattr(protocol, "datagram_received", received)
        monkeypatch.setattr(protocol, "transmit", noted(turns, "acknowledged", protocol.transmit))
        async with client.stream("GET", "/idle"):
            turns.append("woken")
        await asyncio.sleep(0.05)
    woken = turns.index("woken")
    assert turns[woken - 1] == "datagram"
    assert "acknowledged" in turns[woken:]


async def test_a_first_request_leaves_with_the_last_packet_of_its_handshake(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []

    async def app(receive: Any, send: Any) -> None:
        turns.append("asked")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    server = edge.fronts._http3
    assert server is not None
    monkeypatch.setattr(edge.app, "idle", app)
    received = noted(turns, "datagram", server.datagram_received)
    monkeypatch.setattr(server, "datagram_received", received)
    async with edge.client("3") as client:
        assert (await client.request("GET", "/idle")).status == 200
    assert turns[:3] == ["datagram", "datagram", "asked"]
