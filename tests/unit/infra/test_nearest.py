"""Which edge is nearest, over real sockets on loopback."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from firstlight.infra.nearest import edges_by_distance, nearest_edges
from firstlight.infra.running import EdgeAddress, RunningMesh
from firstlight.shared.errors import PeerError
from firstlight.shared.tls import ensure_ca

GONE = EdgeAddress("gone", "us", "https://127.0.0.1:9")


@pytest.fixture
async def here() -> AsyncIterator[EdgeAddress]:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield EdgeAddress("here", "eu", f"https://127.0.0.1:{port}")
    server.close()
    await server.wait_closed()


async def test_an_edge_that_cannot_be_reached_is_left_out(here: EdgeAddress) -> None:
    (measured,) = await edges_by_distance([GONE, here])
    assert measured.edge == here
    assert 0 < measured.connect_ms < 2000


async def test_no_reachable_edge_is_an_error_that_names_them() -> None:
    with pytest.raises(PeerError, match=r"no edge can be reached: https://127\.0\.0\.1:9"):
        await edges_by_distance([GONE])


async def test_without_a_load_balancer_the_edges_of_the_file_are_measured(
    here: EdgeAddress, tmp_path: Path
) -> None:
    mesh = RunningMesh(1, "https://127.0.0.1:9", (GONE, here), str(ensure_ca(tmp_path).cert), "m")
    assert (await nearest_edges(mesh))[0].edge == here
