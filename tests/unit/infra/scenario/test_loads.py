"""Clients of a row leave an edge alone that does not answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from firstlight.infra.client.connections import Connections
from firstlight.infra.client.response import Client
from firstlight.infra.scenario import loads
from firstlight.infra.scenario.loads import Mesh, _Clients
from firstlight.infra.scenario.scenario import LoadSpec
from firstlight.shared.breaker import PROBE_FIRST_S
from firstlight.shared.errors import PeerError

URL = "https://edge:1"
SPEC = LoadSpec.model_validate({"name": "row", "at": "user", "edges": ["edge"]})


class Edge:
    """Dialled as often as it says; answers or not."""

    def __init__(self) -> None:
        self.up, self.dialled = True, 0

    @asynccontextmanager
    async def warm(self) -> AsyncIterator["Edge"]:
        self.dialled += 1
        await asyncio.sleep(0)
        if not self.up:
            raise PeerError("nobody answers")
        yield self

    async def request(self, *_: Any) -> None: ...


@pytest.fixture
def edge(monkeypatch: pytest.MonkeyPatch) -> Edge:
    made = Edge()
    monkeypatch.setattr(_Clients, "_connections", lambda clients, url: cast(Connections, made))
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(loads, "monotonic_s", lambda: now[0])
    return now


async def ask(clients: _Clients) -> Client:
    async with clients.connect(URL) as client:
        return client


async def test_an_edge_that_failed_is_dialled_by_one_at_a_time_and_not_at_once(
    edge: Edge, clock: list[float]
) -> None:
    clients = _Clients(SPEC, Mesh({"edge": URL}, Path("ca.pem"), "key"))
    await ask(clients)
    edge.up = False
    for _ in range(3):
        with pytest.raises(PeerError):
            await ask(clients)
    assert edge.dialled == 2
    clock[0] += PROBE_FIRST_S
    failed = await asyncio.gather(*(ask(clients) for _ in range(5)), return_exceptions=True)
    assert [type(one) for one in failed] == [PeerError] * 5
    assert edge.dialled == 3


async def test_an_edge_that_is_back_is_asked_by_all_again(edge: Edge, clock: list[float]) -> None:
    clients = _Clients(SPEC, Mesh({"edge": URL}, Path("ca.pem"), "key"))
    edge.up = False
    with pytest.raises(PeerError):
        await ask(clients)
    edge.up = True
    clock[0] += PROBE_FIRST_S
    await ask(clients)
    await asyncio.gather(*(ask(clients) for _ in range(5)))
    assert edge.dialled == 1 + 2 + 5
