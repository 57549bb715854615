"""The fronts drain within their grace; a bad port or certificate is one clear error."""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest
from edge_tls import TlsFiles
from http_bed import VERSIONS, Edge, EdgeApp

from firstlight.edge_node.http.fronts import Fronts
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError, PeerError


@pytest.mark.parametrize("http", VERSIONS)
async def test_a_drain_lets_streams_finish_and_takes_no_new_requests(edge: Edge, http: Any) -> None:
    async with edge.client(http) as client, edge.client("1") as late:
        assert (await late.request("GET", "/hello")).status == 200
        async with client.stream("GET", "/sse?events=40&wait_s=0.02") as response:
            await edge.app.started.wait()
            draining = asyncio.ensure_future(edge.fronts.drain(5.0))
            await asyncio.sleep(0.1)
            refused = await late.request("GET", "/hello")
            assert (refused.status, refused.headers["alt-svc"]) == (503, "clear")
            events = [event.data async for event in response.events()]
        assert events[-1] == "[DONE]"
        assert len(events) == 41
        async with asyncio.timeout(2.0):
            await draining
    with pytest.raises(PeerError, match="did not answer"):
        await edge.client("3", connect_timeout_s=0.3).request("GET", "/hello")


async def test_an_answer_that_starts_in_a_drain_names_no_port_that_closes(edge: Edge) -> None:
    async with edge.client("2") as client:
        asked = asyncio.ensure_future(client.request("GET", "/idle"))
        await edge.app.started.wait()
        draining = asyncio.ensure_future(edge.fronts.drain(5.0))
        assert (await asked).headers["alt-svc"] == "clear"
        await draining


@pytest.mark.parametrize("http", VERSIONS)
async def test_a_drain_cuts_what_takes_longer_than_its_grace(edge: Edge, http: Any) -> None:
    async with edge.client(http) as client:
        with contextlib.suppress(PeerError):
            async with client.stream("GET", "/sse?events=1000&wait_s=0.02") as response:
                await edge.app.started.wait()
                began_s = monotonic_s()
                await edge.fronts.drain(0.3)
                assert monotonic_s() - began_s < 1.5
                assert edge.app.gone.is_set()
                async with asyncio.timeout(2.0):
                    events = [event.data async for event in response.events()]
                assert "[DONE]" not in events
    assert edge.fronts.requests == 0


@pytest.mark.parametrize(
    ("kind", "name"), [(socket.SOCK_STREAM, "tcp"), (socket.SOCK_DGRAM, "udp")]
)
async def test_a_port_in_use_is_one_clear_error(tls: TlsFiles, kind: int, name: str) -> None:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        port = taken.getsockname()[1]
        fronts = Fronts(EdgeApp(), "127.0.0.1", port, tls.cert, tls.key)
        with pytest.raises(ConfigError, match=f"{name} port {port} .*in use"):
            await fronts.start()


async def test_two_edges_cannot_share_a_port_and_a_stopped_one_frees_it(
    edge: Edge, tls: TlsFiles
) -> None:
    second = Fronts(EdgeApp(), "127.0.0.1", edge.fronts.port, tls.cert, tls.key)
    with pytest.raises(ConfigError, match="tcp port"):
        await second.start()
    await edge.fronts.stop()
    await second.start()
    async with edge.client("2") as client:
        assert (await client.request("GET", "/hello")).status == 200
    async with edge.client("3") as client:
        assert (await client.request("GET", "/hello")).status == 200
    await second.stop()


async def test_a_certificate_that_cannot_be_used_is_one_clear_error(
    tls: TlsFiles, tmp_path: Path
) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        await Fronts(EdgeApp(), "127.0.0.1", 0, missing, tls.key).start()


async def test_an_unknown_tcp_server_is_refused(tls: TlsFiles) -> None:
    with pytest.raises(ConfigError, match="tcp is 'nginx'"):
        Fronts(EdgeApp(), "127.0.0.1", 0, tls.cert, tls.key, tcp="nginx")  # type: ignore[arg-type]
