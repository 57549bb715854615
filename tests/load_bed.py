"""A server of OpenAI's API over HTTP/1.1, 2 and 3 whose delays and failures are known.

Each streamed request takes the next behavior of a list; when the list is empty, all go well. It
runs on a loop of its own thread, so that a command can run in the test's.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from edge_tls import TlsFiles

from firstlight.edge_node.http.fronts import Fronts
from firstlight.shared.clock import monotonic_s

FIRST_S, TOKEN_S = 0.05, 0.02


@dataclass
class LoadServer:
    """How it answers, and what it was asked."""

    behaviors: list[str] = field(default_factory=list)
    """ok, an HTTP status, cut, error, nonsense, empty, hang (never a byte), forever (text, and no
    end); `ok` after the last."""
    context: int | None = 8192
    cached: int | None = None
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Of streamed requests, in the order of their arrival."""
    arrived_s: list[float] = field(default_factory=list)
    peers: list[tuple[str, int]] = field(default_factory=list)
    """Address and port that each streamed request came from."""
    keys: set[str | None] = field(default_factory=set)
    left: int = 0
    """Clients that went away before their answer's end."""
    out: int = 0
    """Requests in work."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for name in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{name}.complete"})
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.keys.add(headers.get("authorization"))
        if scope["path"].endswith("/models"):
            model = {"id": "tiny"} | ({"max_model_len": self.context} if self.context else {})
            await self.whole(send, 200, {"data": [model]})
            return
        body = await self.read(receive)
        if not body["stream"]:
            await self.whole(send, 200, {"choices": [{"text": "x"}]})
            return
        self.bodies.append(body)
        self.arrived_s.append(monotonic_s())
        self.peers.append(tuple(scope["client"][:2]))
        self.out += 1
        try:
            await self.answer(body, receive, send)
        finally:
            self.out -= 1

    async def answer(self, body: dict[str, Any], receive: Any, send: Any) -> None:
        behavior = self.behaviors.pop(0) if self.behaviors else "ok"
        if behavior.isdigit():
            await self.whole(send, int(behavior), {"error": {"message": f"no: {behavior}"}})
            return
        if behavior != "hang":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await self.event(send, self.chunk(body, "" if behavior != "forever" else "begun"))
        if behavior in ("hang", "forever"):
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left += 1
            return
        count = 0 if behavior == "empty" else body["max_tokens"]
        await asyncio.sleep(FIRST_S)
        for number in range(count):
            if number:
                await asyncio.sleep(TOKEN_S)
            if number == 1 and behavior in ("cut", "error", "nonsense"):
                await self.go_wrong(behavior, send)
                return
            await self.event(send, self.chunk(body, f"w{number} "))
        usage = {"completion_tokens": count, "prompt_tokens": len(self.prompt(body).split())}
        if self.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached}
        await self.event(send, {"choices": [], "usage": usage})
        await self.send(send, b"data: [DONE]\n\n", more=False)

    async def go_wrong(self, behavior: str, send: Any) -> None:
        if behavior == "error":
            await self.event(send, {"error": {"message": "the \x1b[31mengine broke"}})
        elif behavior == "nonsense":
            await self.event(send, ["no", "chunk"])
        await self.send(send, b"", more=False)

    @staticmethod
    def prompt(body: dict[str, Any]) -> str:
        return body["prompt"] if "prompt" in body else body["messages"][0]["content"]

    @staticmethod
    def chunk(body: dict[str, Any], text: str) -> dict[str, Any]:
        return {"choices": [{"text": text} if "prompt" in body else {"delta": {"content": text}}]}

    async def read(self, receive: Any) -> dict[str, Any]:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        return json.loads(body)

    async def whole(self, send: Any, status: int, value: object) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send(send, json.dumps(value).encode(), more=False)

    async def event(self, send: Any, value: object) -> None:
        await self.send(send, b"data: " + json.dumps(value).encode() + b"\n\n", more=True)

    async def send(self, send: Any, body: bytes, *, more: bool) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": more})


@contextlib.contextmanager
def load_server(tls: TlsFiles, **told: Any) -> Iterator[LoadServer]:
    server, ready = LoadServer(**told), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    done = asyncio.Event()

    async def serve() -> None:
        fronts = Fronts(server, "127.0.0.1", 0, tls.cert, tls.key)
        await fronts.start()
        server.url = f"https://localhost:{fronts.port}/v1"
        loops.append(asyncio.get_running_loop())
        ready.set()
        try:
            await done.wait()
        finally:
            await fronts.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield server
    finally:
        if loops:
            loops[0].call_soon_threadsafe(done.set)
        thread.join()
