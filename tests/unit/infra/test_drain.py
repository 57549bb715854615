"""`firstlight drain` at an address: what is said of one that is no load balancer."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from firstlight.infra.drain import run_drain
from firstlight.shared.errors import ConfigError, PeerError


class Stranger(BaseHTTPRequestHandler):
    """Some server that answers JSON which is no object."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def stranger() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def drained(at: str) -> int:
    return run_drain("core-eu", undo=False, at=at, as_json=False)


def test_what_is_no_address_is_told_with_what_was_expected() -> None:
    with pytest.raises(ConfigError, match="'foo:bar', expected HOST:PORT"):
        drained("foo:bar")


def test_an_address_where_nobody_is_is_named() -> None:
    with pytest.raises(PeerError, match=r"127\.0\.0\.1:1: no answer: .*refused"):
        drained("127.0.0.1:1")


def test_a_stranger_is_no_load_balancer(stranger: str) -> None:
    with pytest.raises(PeerError, match="not answer as a load balancer's admin listener"):
        drained(stranger)
