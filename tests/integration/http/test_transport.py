"""Our httpx transports at an edge's real HTTP fronts: which way is taken, and what an end does."""

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from http_bed import PROMPT_S, Edge

from firstlight.client import AsyncTransport, ConfigError, DistrustedError, Transport
from firstlight.infra.client import lookup, nearest
from firstlight.infra.client.nearest import NearestEdges


@asynccontextmanager
async def client_of(*urls: str, edge: Edge, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = AsyncTransport(*urls, ca_file=edge.tls.ca, **options)
    async with httpx.AsyncClient(transport=transport, base_url=urls[0]) as client:
        yield client


def home(client: httpx.AsyncClient) -> str:
    transport = client._transport
    assert isinstance(transport, AsyncTransport)
    assert transport.edges._home is not None
    return transport.edges._home.lane.http + " " + transport.edges._home.url


@asynccontextmanager
async def relay(port: int, *, swallow_udp: bool = True) -> AsyncIterator[str]:
    """A way to the edge's TCP port alone; datagrams are swallowed, or nobody takes them."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(carry(reader, inner_writer), carry(inner_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    here = server.sockets[0].getsockname()[1]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        if swallow_udp:
            udp.bind(("127.0.0.1", here))
        try:
            yield f"https://localhost:{here}"
        finally:
            server.close()


async def test_a_request_goes_over_http3(edge: Edge) -> None:
    async with client_of(edge.url, edge=edge) as client:
        answer = await client.get("/hello")
        assert (answer.http_version, answer.json()["http"]) == ("HTTP/3", "3")
        assert (await client.post("/size", content=b"x" * 100_000)).json() == 100_000
        assert home(client) == f"3 {edge.url}"


@pytest.mark.parametrize("swallow_udp", [True, False], ids=["swallowed", "refused"])
async def test_where_udp_is_blocked_it_goes_over_tcp(edge: Edge, swallow_udp: bool) -> None:
    async with (
        relay(edge.fronts.port, swallow_udp=swallow_udp) as url,
        client_of(url, edge=edge) as client,
    ):
        answer = await client.get("/hello")
        assert (answer.http_version, answer.json()["http"]) == ("HTTP/1.1", "1.1")
        async with client.stream("GET", "/sse") as stream:
            assert [line async for line in stream.aiter_lines()][-2] == "data: [DONE]"


async def test_that_udp_is_swallowed_is_remembered(edge: Edge) -> None:
    async with relay(edge.fronts.port) as url, client_of(url, edge=edge) as client:
        await client.get("/hello")
        transport = client._transport
        assert isinstance(transport, AsyncTransport)
        assert transport.edges._book.udp_doubted(asyncio.get_running_loop().time())
        first = transport.edges._home
        await client.get("/hello")
        assert transport.edges._home is first


async def test_an_edge_that_does_not_answer_loses_the_race(edge: Edge) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"https://localhost:{silent.getsockname()[1]}"
        async with client_of(url, edge.url, edge=edge) as client:
            assert (await client.get("/hello")).json()["http"] == "3"
            assert home(client) == f"3 {edge.url}"


async def test_where_nobody_answers_the_error_says_who_was_asked(edge: Edge) -> None:
    async with client_of("https://127.0.0.1:9", edge=edge, connect_timeout_s=1.0) as client:
        with pytest.raises(httpx.ConnectError, match=r"no edge can be reached: 127\.0\.0\.1:9"):
            await client.get("/hello")


async def test_the_callers_connect_timeout_is_kept(edge: Edge) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        udp.bind(tcp.getsockname())
        url = f"https://127.0.0.1:{tcp.getsockname()[1]}"
        async with client_of(url, edge=edge) as client:
            with pytest.raises(httpx.ConnectTimeout, match=r"within 0\.3 s"):
                await client.get("/hello", timeout=httpx.Timeout(5, connect=0.3))


async def test_the_callers_read_timeout_is_kept(edge: Edge) -> None:
    async with client_of(edge.url, edge=edge) as client:
        with pytest.raises(httpx.ReadTimeout, match=r"nothing came for 0\.2 s"):
            await client.get("/idle", timeout=0.2)


async def test_an_answer_that_is_left_is_ended_at_the_edge(edge: Edge) -> None:
    async with client_of(edge.url, edge=edge) as client:
        async with client.stream("GET", "/sse", params={"events": 10_000}) as stream:
            async for _ in stream.aiter_lines():
                break
        async with asyncio.timeout(PROMPT_S):
            await edge.app.gone.wait()
        before = home(client)
        assert (await client.get("/hello")).status_code == 200
        assert home(client) == before, "the connection goes on"


async def test_a_request_that_is_cancelled_is_ended_at_the_edge(edge: Edge) -> None:
    async with client_of(edge.url, edge=edge) as client:
        asked = asyncio.create_task(client.get("/wait"))
        await edge.app.started.wait()
        asked.cancel()
        async with asyncio.timeout(PROMPT_S):
            await edge.app.gone.wait()


async def test_many_requests_at_once_share_the_way(edge: Edge) -> None:
    async with client_of(edge.url, edge=edge) as client:
        answers = await asyncio.gather(*(client.get("/hello") for _ in range(100)))
    assert {answer.json()["http"] for answer in answers} == {"3"}


async def test_a_server_of_another_mesh_is_not_asked(edge: Edge) -> None:
    async with client_of(edge.url, edge=edge) as client:
        with pytest.raises(httpx.UnsupportedProtocol, match=r"example\.com is not a server of"):
            await client.get("https://example.com/hello", headers={"authorization": "secret"})
    assert edge.app.scopes == []


async def test_a_changed_address_of_this_host_is_noticed(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(edge.url, edge=edge) as client:
        await client.get("/hello")
        transport = client._transport
        assert isinstance(transport, AsyncTransport)
        first = transport.edges._home
        monkeypatch.setattr(nearest, "NETWORK_CHECK_S", 0.0)
        await client.get("/hello")
        assert transport.edges._home is first
        monkeypatch.setattr(nearest, "address_towards", lambda peer: "198.51.100.7")
        assert (await client.get("/hello")).status_code == 200
        assert transport.edges._home is not first


@pytest.mark.parametrize("seeds", [(), ("http://plain:1",), ("https://h/v1",), ("edge",)])
def test_what_is_no_server_is_refused_at_once(seeds: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        Transport(*seeds)


# The same from a thread without a loop.


@pytest.fixture
def threaded(edge: Edge) -> Iterator[httpx.Client]:
    transport = Transport(edge.url, ca_file=edge.tls.ca)
    with httpx.Client(transport=transport, base_url=edge.url) as client:
        yield client
    assert not [one for one in threading.enumerate() if one.name == "firstlight-client"]


Threaded = Callable[[Callable[[], Any]], Awaitable[Any]]


async def test_a_thread_reads_an_answer_as_it_comes(edge: Edge, threaded: httpx.Client) -> None:
    def read() -> tuple[str, list[str]]:
        with threaded.stream("GET", "/sse", params={"events": 30}) as stream:
            version = stream.http_version
            return version, [line for line in stream.iter_lines() if line]

    version, lines = await asyncio.to_thread(read)
    assert version == "HTTP/3"
    assert [json.loads(line[6:])["i"] for line in lines[:-1]] == list(range(30))


async def test_an_answer_that_a_thread_leaves_is_ended_at_the_edge(
    edge: Edge, threaded: httpx.Client
) -> None:
    def leave() -> None:
        with threaded.stream("GET", "/sse", params={"events": 10_000}) as stream:
            next(stream.iter_lines())

    await asyncio.to_thread(leave)
    async with asyncio.timeout(PROMPT_S):
        await edge.app.gone.wait()


async def test_a_thread_that_does_not_read_makes_the_edge_wait(
    edge: Edge, threaded: httpx.Client
) -> None:
    def hold() -> int:
        with threaded.stream("GET", "/flood") as stream:
            next(stream.iter_raw())
            for _ in range(20):
                threading.Event().wait(0.05)
            return edge.app.sent_bytes

    sent = await asyncio.to_thread(hold)
    assert sent < 4000 * 16384, "all of it was taken without being read"


async def test_many_threads_share_one_transport(edge: Edge, threaded: httpx.Client) -> None:
    answers = await asyncio.gather(*(asyncio.to_thread(threaded.get, "/hello") for _ in range(20)))
    assert {answer.json()["http"] for answer in answers} == {"3"}


async def test_errors_reach_a_thread_as_those_of_httpx(edge: Edge, threaded: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        await asyncio.to_thread(lambda: threaded.get("/idle", timeout=0.2))
    with pytest.raises(httpx.UnsupportedProtocol):
        await asyncio.to_thread(lambda: threaded.get("https://example.com/"))
    assert (await asyncio.to_thread(threaded.get, "/hello")).status_code == 200


# The directory.


@asynccontextmanager
async def directory(edge: Edge, body: object) -> AsyncIterator[str]:
    """A load balancer: it has TLS, a list of edges and no HTTP/3."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        told = json.dumps(body).encode() if path.startswith(b"/v1/edges?") else b"{}"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(told) + told)
        await writer.drain()
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(edge.tls.cert, edge.tls.key)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_a_load_balancer_says_where_the_edges_are(edge: Edge) -> None:
    listed = {"data": [{"url": "https://127.0.0.1:9", "node": "dead"}, {"url": edge.url}]}
    async with directory(edge, listed) as url, client_of(url, edge=edge) as client:
        assert (await client.get("/hello")).json()["http"] == "3"
        assert home(client) == f"3 {edge.url}"


async def test_the_nearest_edges_are_those_that_answer(edge: Edge) -> None:
    listed = {"data": [{"url": "https://127.0.0.1:9", "node": "dead"}, {"url": edge.url}]}
    async with (
        directory(edge, listed) as url,
        NearestEdges([url], ca_file=edge.tls.ca) as edges,
    ):
        (found,) = await edges.nearest()
    assert found.edge.url == edge.url
    assert found.why.startswith("measured ")


async def test_a_list_that_nobody_signed_is_refused_where_keys_are_known(edge: Edge) -> None:
    listed = {"data": [{"url": edge.url}]}
    async with (
        directory(edge, listed) as url,
        client_of(url, edge=edge, directory_keys=["ab" * 32]) as client,
    ):
        with pytest.raises(httpx.RemoteProtocolError, match="is not signed"):
            await client.get("/hello")
        transport = client._transport
        assert isinstance(transport, AsyncTransport)
        with pytest.raises(DistrustedError, match=f"{url}/v1/edges: the list of edges is not"):
            await transport.edges.nearest()


async def test_a_list_that_is_too_long_is_not_read_to_its_end(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "BODY_BYTES_MAX", 1000)
    async with (
        directory(edge, {"data": ["x" * 5000]}) as url,
        NearestEdges([url], ca_file=edge.tls.ca) as edges,
    ):
        with pytest.raises(DistrustedError, match="edges: more than 1000 bytes"):
            await edges.nearest()
