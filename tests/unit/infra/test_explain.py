"""`firstlight explain` against small servers on sockets that are edges."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from unit.infra.test_story import STORY

from firstlight.infra import cli
from firstlight.infra import explain as explain_module
from firstlight.infra.explain import Edge, find
from firstlight.shared.errors import AuthError, NotFoundError, PeerError

Capture = pytest.CaptureFixture[str]
ERROR = {"error": {"message": "no API key", "type": "authentication_error"}}


@dataclass
class Served:
    """An edge that says one thing, and what it was asked."""

    url: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ThreadingHTTPServer] = []

    def start(body: Any, status: int = 200) -> Served:
        served = Served()
        whole = body if isinstance(body, bytes) else json.dumps(body).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.asked.append((self.path, self.headers["authorization"]))
                self.send_response(status)
                self.send_header("content-length", str(len(whole)))
                self.end_headers()
                self.wfile.write(whole)

            def log_message(self, format: str, *args: object) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        served.url = f"http://127.0.0.1:{server.server_port}"
        return served

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def unused_url() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def edges(*served: Served) -> list[Edge]:
    return [Edge(one.url, None) for one in served]


def test_a_story_is_shown_in_words(serve: Serve, capsys: Capture) -> None:
    assert cli.run(["explain", "chatcmpl-1", "--url", serve(STORY).url]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == "chatcmpl-1 at edge-eu: finished after 1,412 ms"
    assert "301 prefill on core-eu, 80 queue on core-eu" in shown


def test_json_is_what_the_edge_said_and_nothing_else(serve: Serve, capsys: Capture) -> None:
    assert cli.run(["explain", "chatcmpl-1", "--url", serve(STORY).url + "/v1/", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == STORY


def test_the_id_and_the_key_reach_the_edge(serve: Serve) -> None:
    served = serve(STORY)
    assert cli.run(["explain", "a/../b?c", "--url", served.url, "--key", "k", "--json"]) == 0
    assert served.asked == [("/v1/requests/a%2F..%2Fb%3Fc", "Bearer k")]


def test_an_unknown_id_is_one_line(serve: Serve, capsys: Capture) -> None:
    url = serve(ERROR, 404).url
    assert cli.run(["explain", "chatcmpl-1", "--url", url]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "no request 'chatcmpl-1' is known at " + url in line


def test_what_is_no_story_is_one_line(serve: Serve, capsys: Capture) -> None:
    for body, words in (
        (b"<html>", "no timeline: b'<html>'"),
        ({"object": "firstlight.timeline"}, "cannot be shown, see --json: KeyError"),
    ):
        assert cli.run(["explain", "x", "--url", serve(body).url]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line


async def test_the_edge_that_knows_the_request_is_found_among_all(serve: Serve) -> None:
    one, other, broken = serve(ERROR, 404), serve(STORY), serve(ERROR, 500)
    assert (await find("x", edges(one, broken, other), None))["edge"] == "edge-eu"
    assert len(one.asked) == len(other.asked) == 1


async def test_edges_that_do_not_know_it_are_named(serve: Serve) -> None:
    one, other = serve(ERROR, 404), serve(ERROR, 404)
    with pytest.raises(NotFoundError, match=f"{one.url}, {other.url}"):
        await find("x", edges(one, other), None)


async def test_an_edge_that_cannot_be_asked_leaves_it_open_whether_it_knows(serve: Serve) -> None:
    url = unused_url()
    with pytest.raises(PeerError, match=url):
        await find("x", [*edges(serve(ERROR, 404)), Edge(url, None)], None)


async def test_what_an_edge_refuses_is_the_error(serve: Serve) -> None:
    with pytest.raises(AuthError, match="HTTP 401: no API key"):
        await find("x", edges(serve(ERROR, 401)), None)


async def test_an_endless_story_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain_module, "STORY_BYTES_MAX", 100)
    with pytest.raises(PeerError, match="a timeline of more than"):
        await find("x", edges(serve(STORY)), None)


async def test_an_edge_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain_module, "ASK_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(PeerError, match=r"no answer within 0\.2 s"):
            await find("x", [Edge(url, None)], None)


def test_a_ca_file_that_is_not_there_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    missing = tmp_path / "ca.pem"
    arguments = ["explain", "x", "--url", "https://127.0.0.1:1", "--ca", str(missing)]
    assert cli.run(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(missing) in line
