"""`firstlight route` against small servers on sockets that are load balancers."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from firstlight.infra import cli
from firstlight.shared.types import Candidate, Cost, Route

ROUTE = {
    "lb": "lb-1",
    "edge": "edge-lon",
    **asdict(
        Route(
            (
                Candidate("core-par", "par", 62.5, "cold", Cost(9.0, 20.0, 30.0, 3.5), 64),
                Candidate("core-lon", "lon", 90.0, "hot: load 0.80 above 0.75", Cost(1.0)),
            ),
            "region par: drawn by its share",
            drawn="par",
            spill=(("lon", 0.65), ("par", 0.35)),
        )
    ),
}
Capture = pytest.CaptureFixture[str]
Serve = Callable[..., str]


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def serve(asked: list[str]) -> Iterator[Serve]:
    servers: list[ThreadingHTTPServer] = []

    def start(body: Any, status: int = 200) -> str:
        whole = body if isinstance(body, bytes) else json.dumps(body).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(status)
                self.send_header("content-length", str(len(whole)))
                self.end_headers()
                self.wfile.write(whole)

            def log_message(self, format: str, *args: object) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def run(url: str, *more: str) -> int:
    return cli.run(["route", "--edge", "edge-lon", "--url", url, *more])


def test_a_route_is_shown_with_its_shares_and_the_parts_of_each_core(
    serve: Serve, asked: list[str], capsys: Capture
) -> None:
    assert run(serve(ROUTE), "--prompt-tokens", "300", "--model", "m") == 0
    out = capsys.readouterr().out
    assert asked == ["/v1/route?edge=edge-lon&prompt_tokens=300&model=m"]
    assert "edge-lon: region par: drawn by its share" in out
    assert "shares: lon 65%, par 35%; drawn: par" in out
    row = next(line.split() for line in out.splitlines() if line.startswith("core-par"))
    assert row == ["core-par", "par", "62.5", "9.0", "20.0", "30.0", "3.5", "0.0", "64", "cold"]
    assert "hot: load 0.80 above 0.75" in out


def test_json_is_what_the_load_balancer_said(serve: Serve, capsys: Capture) -> None:
    assert run(serve(ROUTE), "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(ROUTE))


def test_a_route_without_cores_says_why(serve: Serve, capsys: Capture) -> None:
    none = {"edge": "edge-lon", **asdict(Route((), "no core is known"))}
    assert run(serve(none)) == 0
    assert capsys.readouterr().out.strip() == "edge-lon: no core is known"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"error": {"message": "no edge 'x' lives", "type": "e"}}, 404, "no edge 'x' lives"),
        (b"<html>", 200, "what came is no route"),
        ({"candidates": [{}], "edge": "e", "reason": "r"}, 200, "the route cannot be shown"),
    ],
)
def test_whatever_is_wrong_is_said_in_one_line(
    serve: Serve, capsys: Capture, body: object, status: int, said: str
) -> None:
    assert run(serve(body, status)) == 1
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--edge", " "], ["--edge", "a\x07b"]])
def test_a_name_that_is_none_is_refused(arguments: list[str], capsys: Capture) -> None:
    assert cli.run(["route", *arguments, "--url", "http://127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "firstlight: the edge has no name that can be asked for\n"


def test_nobody_there_is_one_line(capsys: Capture) -> None:
    assert run("http://127.0.0.1:1") == 1
    assert capsys.readouterr().err.count("\n") == 1
