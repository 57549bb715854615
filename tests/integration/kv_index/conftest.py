"""A server of the KV index for each test, and two cores that live by it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kv_index_bed import Server, running

from firstlight.core_node.kv.index import KvIndex


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A fresh one."""
    server = Server(tmp_path)
    yield server
    server.end()


@pytest.fixture
async def one(server: Server) -> AsyncIterator[KvIndex]:
    """The index as the core "one" sees it."""
    async with running(server.config, "one") as index:
        yield index


@pytest.fixture
async def two(server: Server) -> AsyncIterator[KvIndex]:
    """The index as the core "two" sees it."""
    async with running(server.config, "two") as index:
        yield index
