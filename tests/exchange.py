"""One HTTP exchange with an app over bare ASGI, seen from the server that carries it."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any


class Exchange:
    """A request that is sent at once; its answer is read as it comes, and its client may leave."""

    def __init__(
        self,
        app: Any,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        version: str = "1.1",
    ) -> None:
        self.sent: list[dict[str, Any]] = []
        self.writable = asyncio.Event()
        self.writable.set()
        self._gone = asyncio.Event()
        self._body = b"" if body is None else json.dumps(body).encode()
        self._read = False
        path, _, query = path.partition("?")
        given = [(name.lower().encode(), v.encode()) for name, v in (headers or {}).items()]
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version, "method": method, "scheme": "https",
            "path": path, "raw_path": path.encode(),
            "query_string": query.encode(), "headers": [(b"host", b"edge"), *given],
            "client": ("::1", 1), "server": ("::1", 443),
        }  # fmt: skip
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        await self.writable.wait()

    def leave(self) -> None:
        self._gone.set()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(m["body"] for m in self.sent[1:])

    @property
    def error(self) -> dict[str, Any]:
        """The error that the body is."""
        found = json.loads(self.body)["error"]
        assert isinstance(found, dict)
        return found

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not true():  # noqa: ASYNC110 (values, not events, are what is waited for)
                await asyncio.sleep(0.002)

    async def ended(self) -> "Exchange":
        """This exchange, when the server is done with it."""
        async with asyncio.timeout(30):
            await self.task
        return self
