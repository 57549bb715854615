"""HTTP/1.1, HTTP/2 and HTTP/3 serve one application alike, on either event loop."""

import asyncio
from typing import Any

import pytest
from edge_tls import TlsFiles
from http_bed import PROMPT_S, VERSIONS, Edge, EdgeApp

from firstlight.edge_node.http.fronts import Fronts
from firstlight.infra.client.client import open_client
from firstlight.shared.lifecycle import loop_factory


@pytest.mark.parametrize("http", VERSIONS)
async def test_a_request_is_served_over_each_version_by_the_same_application(
    edge: Edge, http: Any
) -> None:
    async with edge.client(http) as client:
        response = await client.request("GET", "/hello")
        assert response.status == 200
        assert response.body == b'{"http":"%s","name":"edge"}' % (
            b"1.1" if http == "1" else http.encode()
        )
        sized = await client.request("POST", "/size", {}, b"x" * 300_000)
        assert sized.body == b"300000"
    scope = edge.app.scopes[0]
    assert scope["asgi"]["spec_version"] == "2.3"
    assert scope["server"] == ("127.0.0.1", edge.fronts.port)
    assert isinstance(scope["client"][1], int)
    announced = response.headers.get("alt-svc")
    assert announced == (None if http == "3" else f'h3=":{edge.fronts.port}"; ma=86400')
    assert "date" in response.headers


@pytest.mark.parametrize("http", VERSIONS)
async def test_events_arrive_one_by_one_and_with_their_times(edge: Edge, http: Any) -> None:
    async with edge.client(http) as client, client.stream("GET", "/sse?events=5") as response:
        events = [event.data async for event in response.events()]
    assert events == [f'{{"i": {index}, "text": "ä"}}' for index in range(5)] + ["[DONE]"]
    marks = response.marks
    assert marks.started_s < marks.connected_s < marks.sent_s < marks.headers_s
    assert marks.headers_s <= marks.first_event_s < marks.headers_s + PROMPT_S


async def test_the_lifespan_runs_once_for_both_fronts(tls: TlsFiles) -> None:
    app = EdgeApp()
    fronts = Fronts(app, "127.0.0.1", 0, tls.cert, tls.key)
    await fronts.start()
    assert app.lifespans == ["startup"]
    await fronts.stop()
    assert app.lifespans == ["startup", "shutdown"]


def test_all_versions_are_served_on_uvloop_too(tls: TlsFiles) -> None:
    async def main() -> list[bytes]:
        assert "uvloop" in type(asyncio.get_running_loop()).__module__
        fronts = Fronts(EdgeApp(), "127.0.0.1", 0, tls.cert, tls.key)
        await fronts.start()
        bodies = []
        for http in VERSIONS:
            url = f"https://localhost:{fronts.port}"
            async with open_client(url, http, ca_file=tls.ca) as client:  # type: ignore[arg-type]
                async with client.stream("GET", "/sse?events=3") as response:
                    assert len([event async for event in response.events()]) == 4
                bodies.append((await client.request("POST", "/size", {}, b"x" * 300_000)).body)
        await fronts.drain(1.0)
        await fronts.stop()
        return bodies

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        assert runner.run(main()) == [b"300000"] * 3
