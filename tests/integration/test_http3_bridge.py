"""The edge's HTTP fronts on real sockets, against clients of several makes."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import curl_cffi
import h2.config
import h2.connection
import h2.events
import niquests
import psutil
import pytest
from aioquic.buffer import Buffer
from aioquic.h3.connection import H3_ALPN, ErrorCode
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType, pull_quic_header
from curl_cffi import CurlHttpVersion
from edge_tls import TlsFiles, write_tls_files
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from firstlight.edge_node.http.fronts import Fronts
from firstlight.edge_node.http.limits import HttpLimits
from firstlight.edge_node.http.loop import run
from firstlight.infra.client.client import open_client
from firstlight.infra.client.http3 import Http3Client
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError, PeerError

MIB = 1024 * 1024
PROMPT_S = 2.0  # far below every timeout, with room for a busy machine


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return write_tls_files(Path(tmp_path_factory.mktemp("tls")))


class EdgeApp:
    """A FastAPI application for what is ordinary, and bare ASGI where a message counts."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.gone = asyncio.Event()
        self.gone_at_s = 0.0
        self.scopes: list[dict[str, Any]] = []
        self.lifespans: list[str] = []
        self.sent_bytes = 0
        self.fastapi = FastAPI(lifespan=self.lifespan)
        self.fastapi.get("/hello")(self.hello)
        self.fastapi.get("/sse")(self.sse)
        self.fastapi.post("/size")(self.size)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[dict[str, str]]:
        self.lifespans.append("startup")
        yield {"name": "edge"}
        self.lifespans.append("shutdown")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.scopes.append(scope)
            raw = {"/wait": self.wait, "/flood": self.flood, "/idle": self.idle}
            if scope["path"] in raw:
                self.started.set()
                await raw[scope["path"]](receive, send)
                return
        await self.fastapi(scope, receive, send)

    def note_gone(self) -> None:
        self.gone_at_s = monotonic_s()
        self.gone.set()

    async def hello(self, request: Request) -> dict[str, str]:
        return {"http": request.scope["http_version"], "name": request.state.name}

    async def size(self, request: Request) -> int:
        return len(await request.body())

    async def sse(self, events: int = 20, wait_s: float = 0.01) -> StreamingResponse:
        async def generate() -> AsyncIterator[bytes]:
            try:
                for index in range(events):
                    yield b'data: {"i": %d, "text": "\xc3\xa4"}\n\n' % index
                    self.started.set()
                    await asyncio.sleep(wait_s)
                yield b"data: [DONE]\n\n"
            except BaseException:
                self.note_gone()
                raise

        return StreamingResponse(generate(), media_type="text/event-stream")

    async def wait(self, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.note_gone()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"nobody reads this"})

    async def idle(self, receive: Any, send: Any) -> None:
        await asyncio.sleep(1.0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def flood(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(4000):
            await send({"type": "http.response.body", "body": b"x" * 16384, "more_body": True})
            self.sent_bytes += 16384


class Edge:
    def __init__(self, app: EdgeApp, fronts: Fronts, tls: TlsFiles) -> None:
        self.app = app
        self.fronts = fronts
        self.tls = tls
        self.url = f"https://localhost:{fronts.port}"

    def client(self, http: Any, **options: Any) -> Any:
        return open_client(self.url, http, ca_file=self.tls.ca, **options)

    def context(self, *alpn: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.tls.ca))
        context.set_alpn_protocols(list(alpn))
        return context

    async def connect_tcp(self, *alpn: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1",
            self.fronts.port,
            ssl=self.context(*alpn),
            server_hostname="localhost",
            limit=1024,
        )


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


VERSIONS = ["1", "2", "3"]


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

    assert run(main()) == [b"300000"] * 3


# Cancellation.


async def h2_stream(edge: Edge, path: str) -> Any:
    """Start an HTTP/2 request and give back how to reset it."""
    reader, writer = await edge.connect_tcp("h2")
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    connection.initiate_connection()
    fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", path),
    ]
    connection.send_headers(1, fields, end_stream=True)
    writer.write(connection.data_to_send())
    return connection, reader, writer


class Cancel:
    """Each way in which a client goes: starts a request, then breaks it off."""

    def __init__(self, edge: Edge, path: str) -> None:
        self.edge = edge
        self.path = path

    async def _h3(self, how: Callable[[Http3Client, Any], Any]) -> None:
        client = self.edge.client("3")
        protocol = await client.connect()

        async def ask() -> None:
            with contextlib.suppress(PeerError):
                async with client.stream("GET", self.path) as response:
                    async for _ in response.events():
                        pass

        asking = asyncio.ensure_future(ask())
        await self.edge.app.started.wait()
        await asyncio.sleep(0.05)
        await how(client, protocol)
        await self._wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await client.aclose()

    async def _wait(self, timeout_s: float = PROMPT_S) -> None:
        self.began_s = monotonic_s()
        async with asyncio.timeout(timeout_s):
            await self.edge.app.gone.wait()

    async def stop_sending(self) -> None:
        async def how(client: Http3Client, protocol: Any) -> None:
            protocol.quic.stop_stream(0, ErrorCode.H3_REQUEST_CANCELLED)
            protocol.transmit()

        await self._h3(how)

    async def close(self) -> None:
        await self._h3(lambda client, protocol: client.abort())

    async def leave(self) -> None:
        """What our own client does when its caller leaves the block."""
        async with self.edge.client("3") as client:

            async def ask() -> None:
                async with client.stream("GET", self.path) as response:
                    async for _ in response.events():
                        pass

            asking = asyncio.ensure_future(ask())
            await self.edge.app.started.wait()
            await asyncio.sleep(0.05)
            asking.cancel()
            await self._wait()

    async def reset(self) -> None:
        client = self.edge.client("3")
        protocol = await client.connect()
        fields = [(":method", "GET"), (":scheme", "https"), (":authority", "localhost")]
        fields.append((":path", self.path))
        protocol.h3.send_headers(0, [(a.encode(), b.encode()) for a, b in fields])
        protocol.transmit()
        await self.edge.app.started.wait()
        protocol.quic.reset_stream(0, ErrorCode.H3_REQUEST_CANCELLED)
        protocol.transmit()
        await self._wait()
        await client.aclose()

    async def idle(self) -> None:
        async def how(client: Http3Client, protocol: Any) -> None:
            await client.vanish()
            await self._wait(4.0)

        await self._h3(how)

    async def h2_rst(self) -> None:
        connection, _, writer = await h2_stream(self.edge, self.path)
        await self.edge.app.started.wait()
        await asyncio.sleep(0.05)
        connection.reset_stream(1, 8)
        writer.write(connection.data_to_send())
        await self._wait()
        writer.close()

    async def h2_close(self) -> None:
        _, _, writer = await h2_stream(self.edge, self.path)
        await self.edge.app.started.wait()
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await self._wait()

    async def h1_close(self) -> None:
        _, writer = await self.edge.connect_tcp("http/1.1")
        writer.write(f"GET {self.path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await self.edge.app.started.wait()
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await self._wait()


CAUSES = ["stop_sending", "reset", "close", "leave", "idle", "h2_rst", "h2_close", "h1_close"]


@pytest.mark.parametrize("path", ["/wait", "/sse?events=500&wait_s=0.02"])
@pytest.mark.parametrize("cause", CAUSES)
async def test_a_client_that_goes_in_any_way_is_noticed_at_once(
    open_edge: Any, cause: str, path: str
) -> None:
    edge = await open_edge(idle_timeout_s=1.0 if cause == "idle" else 25.0)
    cancel = Cancel(edge, path)
    await getattr(cancel, cause)()
    assert edge.app.gone.is_set()
    await asyncio.sleep(0.05)
    assert edge.fronts.requests == 0


@pytest.mark.parametrize("path", ["/wait", "/sse?events=500&wait_s=0.02"])
async def test_uvicorn_in_place_of_granian_notices_a_closed_connection(
    open_edge: Any, path: str
) -> None:
    edge = await open_edge(tcp="uvicorn")
    async with edge.client("1") as client:
        assert (await client.request("GET", "/hello")).status == 200
    await Cancel(edge, path).h1_close()
    assert edge.app.gone.is_set()


# Backpressure and size.


@pytest.mark.parametrize("http", ["1", "2", "3"])
async def test_a_client_that_stops_reading_stops_the_application(edge: Edge, http: Any) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    async with contextlib.AsyncExitStack() as stack:
        if http == "3":
            client = edge.client("3")
            protocol = await client.connect()
            fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"localhost")]
            protocol.h3.send_headers(0, [*fields, (b":path", b"/flood")], end_stream=True)
            protocol.transmit()
            protocol.reading = False
            stack.push_async_callback(client.aclose)
        elif http == "2":
            _, _, writer = await h2_stream(edge, "/flood")
            stack.callback(writer.transport.abort)
        else:
            _, writer = await edge.connect_tcp("http/1.1")
            writer.write(b"GET /flood HTTP/1.1\r\nhost: localhost\r\n\r\n")
            stack.callback(writer.transport.abort)
        await edge.app.started.wait()
        await asyncio.sleep(0.5)
        reached = edge.app.sent_bytes
        await asyncio.sleep(0.3)
        assert edge.app.sent_bytes == reached
        assert reached <= (MIB // 4 if http == "3" else 16 * MIB)
        assert process.memory_info().rss - before < 24 * MIB


@pytest.mark.parametrize("http", ["2", "3"])
async def test_a_client_that_does_not_read_is_cancelled_after_the_stall_timeout(
    open_edge: Any, http: Any
) -> None:
    edge = await open_edge(stall_timeout_s=0.5)
    if http == "3":
        client = edge.client("3")
        protocol = await client.connect()
        fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"localhost")]
        protocol.h3.send_headers(0, [*fields, (b":path", b"/flood")], end_stream=True)
        protocol.transmit()
        protocol.reading = False
        closing = client.aclose
    else:
        _, _, writer = await h2_stream(edge, "/flood")

        async def closing() -> None:
            writer.transport.abort()

    await edge.app.started.wait()
    async with asyncio.timeout(3.0):
        while edge.fronts.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await closing()


async def test_an_upload_that_nobody_reads_does_not_block_other_clients(edge: Edge) -> None:
    async with edge.client("3") as blocked, edge.client("3") as other:
        upload = asyncio.ensure_future(blocked.request("POST", "/idle", {}, b"x" * 4 * MIB))
        await edge.app.started.wait()
        began_s = monotonic_s()
        assert (await other.request("GET", "/hello")).status == 200
        assert monotonic_s() - began_s < PROMPT_S
        assert (await upload).status == 200


async def test_an_honest_upload_of_20_megabytes_passes(open_edge: Any) -> None:
    edge = await open_edge(body_bytes_max=32 * MIB)
    async with edge.client("3") as client:
        client._configuration.max_datagram_size = 8000  # loopback carries it, with less CPU
        response = await client.request("POST", "/size", {}, b"x" * 20_000_000)
    assert response.body == b"20000000"


@pytest.mark.parametrize("http", VERSIONS)
async def test_a_body_above_the_limit_is_answered_413(open_edge: Any, http: Any) -> None:
    edge = await open_edge(body_bytes_max=100_000)
    async with edge.client(http) as client:
        response = await client.request("POST", "/size", {}, b"x" * 100_001)
        assert response.status == 413
        assert b"invalid_request_error" in response.body
        assert (await client.request("POST", "/size", {}, b"x" * 100_000)).body == b"100000"


async def test_a_chunked_body_above_the_limit_is_answered_413(open_edge: Any) -> None:
    edge = await open_edge(body_bytes_max=100_000)
    reader, writer = await edge.connect_tcp("http/1.1")
    writer.write(b"POST /size HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(4):
        writer.write(b"7530\r\n" + b"x" * 30_000 + b"\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.transport.abort()


@pytest.mark.parametrize("http", VERSIONS)
async def test_fields_above_the_limit_are_refused(edge: Edge, http: Any) -> None:
    async with edge.client(http) as client:
        asking = client.request("GET", "/hello", {"x-big": "y" * 40_000})
        if http == "3":
            with pytest.raises(PeerError, match="HEADERS frame of"):
                await asking
        else:
            assert (await asking).status == 431
    assert not edge.app.scopes
    async with edge.client(http) as client:
        assert (await client.request("GET", "/hello")).status == 200


async def test_too_many_requests_are_answered_503(open_edge: Any) -> None:
    edge = await open_edge(requests_max=2)
    async with edge.client("3") as client:
        waiting = [asyncio.ensure_future(client.request("GET", "/wait")) for _ in range(2)]
        await edge.app.started.wait()
        await asyncio.sleep(0.05)
        response = await client.request("GET", "/hello")
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await edge.app.gone.wait()
        await asyncio.sleep(0.05)
        assert (await client.request("GET", "/hello")).status == 200


# Independent clients.


async def test_curl_streams_events_over_http3(edge: Edge) -> None:
    def ask() -> tuple[int, list[bytes]]:
        with curl_cffi.Session(
            http_version=CurlHttpVersion.V3ONLY, verify=str(edge.tls.ca), trust_env=False
        ) as session:
            response = session.get(edge.url + "/sse?events=5", stream=True)
            lines = [line for line in response.iter_lines() if line]
            response.close()
            sized = session.post(edge.url + "/size", data=b"x" * 400_000)
            assert sized.content == b"400000"
            return response.http_version, lines

    version, lines = await asyncio.to_thread(ask)
    assert version == CurlHttpVersion.V3
    assert lines[0] == 'data: {"i": 0, "text": "ä"}'.encode()
    assert lines[-1] == b"data: [DONE]"
    assert len(lines) == 6
    assert edge.app.scopes[0]["http_version"] == "3"


async def test_curl_that_closes_its_stream_cancels_the_application(edge: Edge) -> None:
    def ask() -> None:
        with curl_cffi.Session(
            http_version=CurlHttpVersion.V3ONLY, verify=str(edge.tls.ca), trust_env=False
        ) as session:
            response = session.get(edge.url + "/sse?events=500&wait_s=0.02", stream=True)
            next(response.iter_lines())
            response.close()

    await asyncio.to_thread(ask)
    async with asyncio.timeout(2.0):
        await edge.app.gone.wait()


async def test_niquests_follows_alt_svc_from_tcp_to_http3(edge: Edge) -> None:
    def ask() -> list[int]:
        with niquests.Session() as session:
            session.verify = str(edge.tls.ca)
            session.trust_env = False
            versions = []
            for _ in range(3):
                response = session.get(edge.url + "/hello")
                assert response.status_code == 200
                versions.append(response.http_version)
            return versions

    versions = await asyncio.to_thread(ask)
    assert versions[0] == 20
    assert versions[-1] == 30


async def test_niquests_streams_events_over_http3(edge: Edge) -> None:
    def ask() -> tuple[int, list[bytes]]:
        with niquests.Session(disable_http1=True, disable_http2=True) as session:
            session.verify = str(edge.tls.ca)
            session.trust_env = False
            response = session.get(edge.url + "/sse?events=5", stream=True)
            return response.http_version, [line for line in response.iter_lines() if line]

    version, lines = await asyncio.to_thread(ask)
    assert version == 30
    assert len(lines) == 6


# Drain, ports, files.


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


# Hostile datagrams.


def initial(port: int, tls: TlsFiles) -> bytes:
    """The first datagram of a client that will never go on."""
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, server_name="localhost")
    quic = QuicConnection(configuration=configuration)
    quic.connect(("127.0.0.1", port), now=0.0)
    return quic.datagrams_to_send(now=0.0)[0][0]


async def exchange_datagram(port: int, data: bytes, wait_s: float = 0.3) -> bytes | None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect(("127.0.0.1", port))
        await loop.sock_sendall(sock, data)
        try:
            return await asyncio.wait_for(loop.sock_recv(sock, 2048), wait_s)
        except TimeoutError:
            return None


async def test_unfinished_handshakes_make_new_clients_prove_their_address(open_edge: Any) -> None:
    edge = await open_edge(half_open_retry=4, handshake_timeout_s=30.0)
    for _ in range(4):
        await exchange_datagram(edge.fronts.port, initial(edge.fronts.port, edge.tls))
    answers = [
        await exchange_datagram(edge.fronts.port, initial(edge.fronts.port, edge.tls))
        for _ in range(3)
    ]
    for answer in answers:
        assert answer is not None
        header = pull_quic_header(Buffer(data=answer), host_cid_length=8)
        assert header.packet_type == QuicPacketType.RETRY
    assert edge.fronts._http3.connections == 4
    async with edge.client("3") as client:
        assert (await client.request("GET", "/hello")).status == 200
        assert (await client.connect()).quic._retry_count == 1


async def test_a_source_may_not_open_more_connections_than_its_share(open_edge: Any) -> None:
    edge = await open_edge(connections_per_source_max=2)
    async with edge.client("3") as first, edge.client("3") as second:
        for client in (first, second):
            assert (await client.request("GET", "/hello")).status == 200
        with pytest.raises(PeerError, match="did not answer"):
            await edge.client("3", connect_timeout_s=0.3).request("GET", "/hello")
    await asyncio.sleep(0.5)
    async with edge.client("3") as third:
        assert (await third.request("GET", "/hello")).status == 200


async def test_a_packet_of_a_forgotten_connection_is_answered_with_a_stateless_reset(
    edge: Edge,
) -> None:
    packet = b"\x40" + b"unknown!" + os.urandom(60)
    first = await exchange_datagram(edge.fronts.port, packet)
    second = await exchange_datagram(edge.fronts.port, packet)
    assert first is not None
    assert second is not None
    assert len(first) < len(packet)
    assert first[-16:] == second[-16:]
    assert first[:-16] != second[:-16]
    assert await exchange_datagram(edge.fronts.port, packet[:20], 0.1) is None


async def test_noise_is_dropped_and_costs_nobody_else(edge: Edge) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", edge.fronts.port))
        good = initial(edge.fronts.port, edge.tls)
        for index in range(200):
            noise = bytearray(good if index % 2 else os.urandom(1200))
            noise[index % 60] ^= 0xFF
            sock.send(bytes(noise))
        sock.send(b"")
    async with edge.client("3") as client:
        assert (await client.request("GET", "/hello")).status == 200


async def test_a_client_of_a_closed_port_gets_a_clear_error_soon(tls: TlsFiles) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    for http in VERSIONS:
        client = open_client(f"https://127.0.0.1:{port}", http, ca_file=tls.ca)  # type: ignore[arg-type]
        with pytest.raises(PeerError, match=str(port)):
            await client.request("GET", "/")
        await client.aclose()


async def test_a_client_does_not_trust_another_authority(edge: Edge, tmp_path: Path) -> None:
    other = write_tls_files(tmp_path)
    for http in VERSIONS:
        async with open_client(edge.url, http, ca_file=other.ca) as client:  # type: ignore[arg-type]
            with pytest.raises(PeerError):
                await client.request("GET", "/hello")
