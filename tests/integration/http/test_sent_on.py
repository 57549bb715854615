"""A far edge sends its clients on, over its real HTTP fronts: all but those that chose it."""

from collections.abc import AsyncIterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from desk_bed import desk
from edge_tls import TlsFiles
from http_bed import VERSIONS

from firstlight.edge_node.http.fronts import Fronts
from firstlight.edge_node.http.limits import HttpLimits
from firstlight.edge_node.openai.edges import SendOn
from firstlight.infra.chat import InTurn
from firstlight.infra.client.answer import AnyEdge, Call
from firstlight.infra.client.client import open_client

PATH = "/v1/chat/completions"


async def answers(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] in ("http", "lifespan")
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
async def far(tls: TlsFiles, tmp_path: Path) -> AsyncIterator[Fronts]:
    """The edge in Tokyo, of which this host's network says that London is nearer."""
    tokyo = desk(tmp_path)
    for last in range(2, 8):
        for node, ms in (("tok", 240.0), ("lon", 5.0)):
            tokyo.rtts.tell(ip_address(f"127.0.0.{last}"), node, ms, 0.0)
    app = SendOn(answers, desk=tokyo)
    fronts = Fronts(app, "127.0.0.1", 0, tls.cert, tls.key, HttpLimits())
    await fronts.start()
    yield fronts
    await fronts.stop()


@pytest.mark.parametrize("http", VERSIONS)
async def test_who_does_not_choose_is_sent_on(http: Any, far: Fronts, tls: TlsFiles) -> None:
    async with open_client(f"https://localhost:{far.port}", http, ca_file=tls.ca) as client:
        response = await client.request("POST", PATH, {}, b"{}")
    assert response.status == 307
    assert response.headers["location"].startswith("https://lon.test:443/")


@pytest.mark.parametrize("http", VERSIONS)
async def test_our_client_stays_where_it_asks(http: Any, far: Fronts, tls: TlsFiles) -> None:
    edge = InTurn(
        [f"https://localhost:{far.port}"], partial(open_client, http=http, ca_file=tls.ca)
    )
    async with AnyEdge(edge, Call("POST", PATH, {}, b"{}")) as response:
        assert response.status == 200
