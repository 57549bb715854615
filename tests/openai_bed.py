"""A server with OpenAI's completions, in threads of its own, for tests of what asks such servers.

Its answers are made of the prompt, the seed and the temperature, so that the same question has the
same answer, unless it is told to be moody.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class OpenAiServer:
    """How it answers, and what it was asked."""

    url: str = ""
    refused: frozenset[str] = frozenset()
    """Fields that it answers with 422."""
    words_max: int = 100_000
    """A longer prompt is answered 400."""
    token_s: float = 0.0
    usage: bool = True
    moody: frozenset[int] = frozenset()
    """Numbers of streams whose text is another one."""
    completion: object = field(default_factory=lambda: {"choices": [{"text": "x"}]})
    """What it answers where no stream is asked for."""
    extra: dict[str, Any] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    log: str | None = None
    """File that gets the prompt of each request, a line each."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def number(self, body: dict[str, Any]) -> int:
        with self.lock:
            self.bodies.append(body)
            if self.log is not None:
                with open(self.log, "a", encoding="utf-8") as file:
                    print(body["prompt"], file=file)
            return sum(bool(one["stream"]) for one in self.bodies) - 1


class Handler(BaseHTTPRequestHandler):
    """One connection, one request."""

    served: OpenAiServer

    def log_message(self, *told: object) -> None:
        pass

    def tell(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.tell(200, {"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.served.keys.add(self.headers["authorization"])
        number = self.served.number(body)
        if wrong := self.served.refused & body.keys():
            self.tell(422, {"error": {"message": f"{sorted(wrong)} are unknown"}})
        elif len(body["prompt"].split()) > self.served.words_max:
            self.tell(400, {"error": {"message": "the prompt is too long"}})
        elif not body["stream"]:
            self.tell(200, self.served.completion)
        else:
            self.stream(body, number)

    def stream(self, body: dict[str, Any], number: int) -> None:
        self.send_response(200)
        self.end_headers()
        mood = number if number in self.served.moody else ""
        word = f"{body['prompt'][:20]}{body.get('seed')}{body['temperature']}{mood} "
        self.event({"choices": [{"text": ""}], "firstlight": self.served.extra})
        for _ in range(body["max_tokens"]):
            time.sleep(self.served.token_s)
            self.event({"choices": [{"text": word}]})
        if self.served.usage:
            self.event({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value: object) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")


class Threads(ThreadingHTTPServer):
    """A thread a connection; many may come at once."""

    request_queue_size = 128

    def handle_error(self, *told: object) -> None:
        """Clients may leave; what else goes wrong, they see."""


def handler(server: OpenAiServer) -> type[Handler]:
    return type("Serving", (Handler,), {"served": server})


@contextmanager
def openai_server(**told: Any) -> Iterator[OpenAiServer]:
    server = OpenAiServer(**told)
    with Threads(("127.0.0.1", 0), handler(server)) as http:
        server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
        thread = threading.Thread(target=http.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
