"""An ASGI application that records what it is told, for tests of an edge's connection."""

import asyncio
from typing import Any


class App:
    """An application that records what it is told, and does what its path says."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.sent_bytes = 0

    @property
    def disconnects(self) -> int:
        return sum(message["type"] == "http.disconnect" for message in self.messages)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        await getattr(self, scope["path"].strip("/") or "echo")(receive, send)

    async def echo(self, receive: Any, send: Any) -> None:
        data = b""
        while True:
            message = await receive()
            self.messages.append(message)
            if message["type"] == "http.disconnect":
                return
            data += message["body"]
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % len(data)})

    async def wait(self, receive: Any, send: Any) -> None:
        """Read until the client goes, then try to answer all the same."""
        while not self.disconnects:
            self.messages.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})

    async def stream(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await self.wait(receive, send)

    async def idle(self, receive: Any, send: Any) -> None:
        """Neither read nor answer until told to."""
        await asyncio.Event().wait()

    async def flood(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})
            self.sent_bytes += 10_000
            if self.disconnects:
                return

    async def one_piece(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 1_000_000})

    async def fail(self, receive: Any, send: Any) -> None:
        raise LookupError("secret detail")

    async def fail_late(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"some", "more_body": True})
        raise LookupError("secret detail")

    async def fail_after(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"sorry"})
        raise LookupError("secret detail")

    async def too_short(self, receive: Any, send: Any) -> None:
        fields = [(b"content-length", b"10")]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": b"short"})

    async def silent(self, receive: Any, send: Any) -> None:
        return
