"""The edges of the mesh that runs here, nearest first, over real sockets on loopback."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from firstlight.infra.nearest import DIRECTORY_KEYS, edges_of
from firstlight.infra.running import EdgeAddress, RunningMesh
from firstlight.shared.errors import ConfigError, PeerError
from firstlight.shared.tls import ensure_ca

GONE = EdgeAddress("gone", "us", "https://127.0.0.1:9")


@pytest.fixture
async def here() -> AsyncIterator[EdgeAddress]:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield EdgeAddress("here", "eu", f"https://127.0.0.1:{port}")
    server.close()
    await server.wait_closed()


def mesh(state: Path, *edges: EdgeAddress) -> RunningMesh:
    return RunningMesh(1, "https://127.0.0.1:9", edges, str(ensure_ca(state).cert), "m")


async def test_without_a_load_balancer_the_edges_of_the_file_are_measured(
    here: EdgeAddress, tmp_path: Path
) -> None:
    async with edges_of(mesh(tmp_path, GONE, here)) as edges:
        (ranked,) = await edges.nearest()
    assert ranked.edge.url == here.url
    assert ranked.why.startswith("measured ")


async def test_no_reachable_edge_is_an_error_that_names_them(tmp_path: Path) -> None:
    async with edges_of(mesh(tmp_path, GONE)) as edges:
        with pytest.raises(PeerError, match=r"no edge can be reached: https://127\.0\.0\.1:9"):
            await edges.nearest()


@pytest.mark.parametrize("content", [b"not hex", b"\xff"])
async def test_keys_of_the_directory_that_cannot_be_read_are_an_error(
    tmp_path: Path, content: bytes
) -> None:
    running = mesh(tmp_path, GONE)
    Path(running.ca_file).with_name(DIRECTORY_KEYS).write_bytes(content)
    with pytest.raises(ConfigError, match="public key"):
        edges_of(running)
