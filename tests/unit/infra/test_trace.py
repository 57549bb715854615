"""`firstlight trace` against a small server on a socket that is a core's admin listener."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from firstlight.infra import cli
from firstlight.infra import trace as module
from firstlight.infra.running import CoreAddress, RunningMesh

Capture = pytest.CaptureFixture[str]
TRACE = json.dumps({"traceEvents": [{"ph": "M"}, {"ph": "X"}]}).encode()


Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a listener that says one thing; gives its host:port."""
    servers: list[ThreadingHTTPServer] = []

    def start(body: bytes, status: int = 200) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status if self.path == "/steps.json" else 404)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def mesh(directory: Path, *cores: CoreAddress) -> None:
    running = RunningMesh(os.getpid(), "http://127.0.0.1:1", (), "ca.pem", "m", cores)
    running.write(directory)


def said(capsys: Capture) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/"])
def test_a_core_is_found_by_its_address(
    form: str, serve: Serve, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "core.json"
    assert cli.run(["trace", form.format(serve(TRACE)), "--out", str(out)]) == 0
    assert out.read_bytes() == TRACE
    assert capsys.readouterr().out == f"2 events in {out}: open it at https://ui.perfetto.dev\n"


def test_a_core_of_the_local_mesh_is_found_by_its_name(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRSTLIGHT_STATE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    mesh(tmp_path, CoreAddress("core-eu", "eu", serve(TRACE)))
    assert cli.run(["trace", "core-eu"]) == 0
    assert (tmp_path / "steps.json").read_bytes() == TRACE


def test_the_cores_that_there_are_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("FIRSTLIGHT_STATE_DIR", str(tmp_path))
    mesh(tmp_path, CoreAddress("core-us", "us", ""), CoreAddress("core-eu", "eu", "127.0.0.1:1"))
    assert cli.run(["trace", "core-asia"]) == 1
    assert "no core 'core-asia' runs here, only core-eu, core-us" in said(capsys)
    assert cli.run(["trace", "core-us"]) == 1
    assert "core core-us has no admin listener" in said(capsys)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"<html>", 200, "no trace: b'<html>'"),
        (b"[]", 200, "no trace: b'[]'"),
        (b'{"traceEvents": 1}', 200, "no trace"),
        (TRACE, 503, "status 503"),
        (b"x" * 101, 200, "more than 100 bytes"),
    ],
)
def test_what_is_no_trace_is_one_line_and_no_file(
    body: bytes,
    status: int,
    words: str,
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.setattr(module, "TRACE_BYTES_MAX", 100)
    out = tmp_path / "core.json"
    assert cli.run(["trace", serve(body, status), "--out", str(out)]) == 1
    assert words in said(capsys)
    assert not out.exists()


def test_a_core_that_does_not_answer_is_one_line(capsys: Capture) -> None:
    assert cli.run(["trace", "127.0.0.1:1"]) == 1
    assert "http://127.0.0.1:1/steps.json: no answer" in said(capsys)


@pytest.mark.parametrize("address", ["http://[::1", "127.0.0.1:x", "http://"])
def test_an_address_that_is_none_is_one_line(address: str, capsys: Capture) -> None:
    assert cli.run(["trace", address]) == 1
    assert "no answer" in said(capsys)


def test_a_file_that_cannot_be_written_is_named(
    serve: Serve, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "no" / "where.json"
    assert cli.run(["trace", serve(TRACE), "--out", str(out)]) == 1
    assert f"--out: {out} cannot be written: No such file" in said(capsys)
