"""The edge whose HTTP fronts these tests ask."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from edge_tls import TlsFiles
from http_bed import Edge, EdgeApp

from firstlight.edge_node.http.fronts import Fronts
from firstlight.edge_node.http.limits import HttpLimits


@pytest.fixture
async def open_edge(tls: TlsFiles) -> AsyncIterator[Callable[..., Any]]:
    async with contextlib.AsyncExitStack() as stack:

        async def opened(tcp: Any = "granian", **limits: Any) -> Edge:
            app = EdgeApp()
            bounds = HttpLimits(**limits)
            fronts = Fronts(app, "127.0.0.1", 0, tls.cert, tls.key, bounds, tcp=tcp)
            await fronts.start()
            stack.push_async_callback(fronts.stop)
            return Edge(app, fronts, tls)

        yield opened


@pytest.fixture
async def edge(open_edge: Any) -> Edge:
    opened: Edge = await open_edge()
    return opened
