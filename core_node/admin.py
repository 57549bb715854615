"""A small HTTP listener for the operator, on loopback: health, metrics, steps, the KV pool.

    GET /livez  GET /readyz  GET /metrics  GET /steps.json
    GET /admin/status  POST /admin/flush-cache

One request a connection, bounded in size and time. It is no web server: anything else is refused.
"""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from ipaddress import ip_address

from firstlight.core_node.backends.backend import Backend
from firstlight.core_node.meter import Meter
from firstlight.core_node.step_trace import document, trace_events
from firstlight.shared import telemetry
from firstlight.shared.blocks import BlockCounts
from firstlight.shared.errors import ConfigError
from firstlight.shared.types import Load

HEAD_BYTES_MAX = 8 << 10
REQUEST_S_MAX = 5.0
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
LONG = frozenset({"/steps.json"})
"""What takes long enough to be felt by streams, and is made on a thread."""
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}
_REASONS |= {202: "Accepted", 503: "Service Unavailable"}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the listener."""

    status: int
    body: bytes = b""
    content_type: str = TEXT


class Admin:
    """The routes, and the socket that serves them."""

    def __init__(
        self,
        backend: Backend,
        meter: Meter,
        load: Callable[[], Load],
        disk_blocks: Callable[[], BlockCounts],
        *,
        node: str = "core",
    ) -> None:
        """`node` is this core's name, for those who look at several."""
        self._backend, self._meter, self._load = backend, meter, load
        self._disk_blocks, self._node = disk_blocks, node
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> int:
        """Listen on `host:port` (0 picks a port); returns the port.

        Raises `ConfigError` unless the host is a loopback address, or if the port is in use.
        """
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or not _is_loopback(host):
            raise ConfigError(f"admin {address!r}, expected a loopback address as 127.0.0.1:9100")
        try:
            self._server = await asyncio.start_server(
                self._serve, host.strip("[]"), int(port), limit=HEAD_BYTES_MAX
            )
        except (OSError, OverflowError) as error:
            raise ConfigError(f"admin: cannot listen on {address}: {error}") from None
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Close the socket."""
        if self._server is not None:
            self._server.close()

    def reply(self, method: str, path: str) -> Reply:
        """What a request gets."""
        routes: dict[str, tuple[str, Callable[[], Reply]]] = {
            "/livez": ("GET", lambda: Reply(200, b"live\n")),
            "/readyz": ("GET", self._readyz),
            "/metrics": ("GET", self._metrics),
            "/steps.json": ("GET", self._steps),
            "/admin/status": ("GET", self._status),
            "/admin/flush-cache": ("POST", self._flush),
        }
        if path not in routes:
            return Reply(404, b"no such path; there are " + ", ".join(routes).encode() + b"\n")
        expected, handle = routes[path]
        if method != expected:
            return Reply(405, f"{path} takes {expected}\n".encode())
        return handle()

    def _readyz(self) -> Reply:
        return Reply(503, b"draining\n") if self._load().draining else Reply(200, b"ready\n")

    def _metrics(self) -> Reply:
        self._meter.load(self._load())
        return Reply(200, telemetry.render_core(), telemetry.CONTENT_TYPE)

    def _steps(self) -> Reply:
        events = trace_events(self._backend.steps(), process=self._node, pid=os.getpid())
        return Reply(200, document(events), JSON)

    def _status(self) -> Reply:
        status = {
            "blocks": asdict(self._backend.blocks()),
            "tiers": {
                "host": asdict(self._backend.host_blocks()),
                "disk": asdict(self._disk_blocks()),
            },
            "load": asdict(self._load()),
        }
        return Reply(200, json.dumps(status).encode() + b"\n", JSON)

    def _flush(self) -> Reply:
        self._backend.flush_cache()
        return Reply(202, b"the cache is flushed before the next step\n")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_encode(await self._answer(head)))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # a client that sends no request, or does not wait for the answer
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> Reply:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return Reply(400, b"expected an HTTP/1 request line\n")
        method, path = parts[0], parts[1].partition("?")[0]
        if path in LONG:
            return await asyncio.to_thread(self.reply, method, path)
        return self.reply(method, path)


def _encode(reply: Reply) -> bytes:
    head = (
        f"HTTP/1.1 {reply.status} {_REASONS[reply.status]}\r\n"
        f"content-type: {reply.content_type}\r\n"
        f"content-length: {len(reply.body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + reply.body


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
