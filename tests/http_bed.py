"""An edge's HTTP fronts for tests on real sockets: an application, and clients that misbehave."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

import h2.config
import h2.connection
from edge_tls import TlsFiles
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from firstlight.edge_node.http.fronts import Fronts
from firstlight.infra.client.client import open_client
from firstlight.shared.clock import monotonic_s

VERSIONS = ["1", "2", "3"]
MIB = 1024 * 1024
PROMPT_S = 2.0  # far below every timeout, with room for a busy machine


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


async def h2_stream(edge: Edge, path: str) -> Any:
    """Start an HTTP/2 request on stream 1; give back its connection, reader and writer."""
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


async def h3_stream(edge: Edge, path: str, *, end: bool = True) -> Any:
    """Start an HTTP/3 request on stream 0 and give back its client and protocol."""
    client = edge.client("3")
    protocol = await client.connect()
    fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"localhost")]
    protocol.h3.send_headers(0, [*fields, (b":path", path.encode())], end_stream=end)
    protocol.transmit()
    return client, protocol
