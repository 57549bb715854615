"""`firstlight chat` against a small server on a socket that speaks the documented stream."""

import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from firstlight.infra import cli
from firstlight.infra.chat import Question, ask
from firstlight.infra.client import patience
from firstlight.shared.errors import PeerError, RequestError

Serve = Callable[..., str]
SEEN: dict[str, Any] = {}

TTFT = {"total": 50.0, "network": 1.0, "queue": 2.0, "prefill": 40.0, "first_packet": 7.0}
HINTS = {"edge-ngram": {"offered": 6, "verified": 5, "accepted": 3}}


def chunk(content: str | None, finish: str | None = None, **firstlight: Any) -> str:
    delta = {} if content is None else {"content": content}
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return "data: " + json.dumps(
        {"id": "chatcmpl-1", "model": "m", "choices": choices, "firstlight": firstlight}
    )


STREAM = [
    chunk("", stream="s", seed=7, **{"class": "c0"}, edge="edge-eu"),
    chunk("Blue", offset=1, ids=[11]),
    ":",
    chunk(" light", offset=3, ids=[12, 13]),
    chunk(
        None,
        "stop",
        edge="edge-eu",
        core="core-us",
        region="us",
        protocol="h1",
        ttft_ms=TTFT,
        tpot_ms=9.5,
        hints=HINTS,
        moved=0,
        continuation="exact",
    ),
    "data: [DONE]",
]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ThreadingHTTPServer] = []

    def start(lines: list[str], status: int = 200, *, missing_bytes: int = 0) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                SEEN["body"] = json.loads(self.rfile.read(length))
                SEEN["headers"] = dict(self.headers)
                self.send_response(status)
                self.send_header("x-request-id", "req-1")
                kind = "text/event-stream" if status == 200 else "application/json"
                self.send_header("content-type", kind)
                whole = b"".join(
                    (line + ("\n" if line == ":" else "\n\n")).encode() for line in lines
                )
                if missing_bytes:
                    self.send_header("content-length", str(len(whole) + missing_bytes))
                self.end_headers()
                self.wfile.write(whole)

            def do_GET(self) -> None:
                assert self.path == "/v1/models"
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"data": [{"id": "first"}, {"id": "second"}]}')

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


def chat(url: str, *options: str) -> int:
    return cli.run(["chat", "--url", url, "--http", "1", *options, "Why?"])


def test_the_text_goes_to_stdout_and_a_line_of_figures_to_stderr(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(serve(STREAM)) == 0
    shown = capsys.readouterr()
    assert shown.out == "Blue light\n"
    summary = " ".join(shown.err.split())
    for part in ("3 tokens", "3 of 6 hinted", "edge-eu → core-us (us)", "seed 7"):
        assert part in summary


def test_json_is_one_object_with_every_documented_key(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(serve(STREAM), "--json") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    (line,) = shown.out.splitlines()
    answer = json.loads(line)
    client = {name: answer["ttft_ms"].pop(name) for name in list(answer["ttft_ms"])[5:]}
    assert list(client) == [
        "client_connect",
        "client_headers",
        "client_first_token",
        "client_total",
    ]
    times = list(client.values())
    assert times == sorted(times)
    answer.pop("tokens_per_s")
    assert answer == {
        "id": "chatcmpl-1",
        "text": "Blue light",
        "token_ids": [11, 12, 13],
        "finish_reason": "stop",
        "model": "m",
        "seed": 7,
        "class": "c0",
        "protocol": "h1",
        "edge": "edge-eu",
        "core": "core-us",
        "region": "us",
        "ttft_ms": TTFT,
        "tpot_ms": 9.5,
        "hints": {"offered": 6, "verified": 5, "accepted": 3, "by_source": HINTS},
        "moved": 0,
        "continuation": "exact",
        "resumed": 0,
        "request_id": "req-1",
    }


def test_options_reach_the_request(serve: Serve) -> None:
    options = ["--seed", "3", "--temperature", "0.5", "--max-tokens", "9", "--hints", "off"]
    assert chat(serve(STREAM), *options, "--key", "k", "--model", "m") == 0
    assert SEEN["body"] == {
        "model": "m",
        "messages": [{"role": "user", "content": "Why?"}],
        "stream": True,
        "seed": 3,
        "temperature": 0.5,
        "max_tokens": 9,
        "firstlight": {"hints": "off"},
    }
    assert SEEN["headers"]["authorization"] == "Bearer k"


def test_what_is_not_given_is_left_to_the_api() -> None:
    fields = json.loads(Question("Why?").body())
    assert set(fields) == {"model", "messages", "stream", "firstlight"}


def test_without_a_model_the_choice_is_left_to_the_edge(serve: Serve) -> None:
    assert chat(serve(STREAM)) == 0
    assert SEEN["body"]["model"] == "auto"


def test_a_stream_that_ends_too_early_is_an_error(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(serve(STREAM[:3])) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "ended before the answer did, after 1 tokens" in line


def test_an_error_of_the_api_is_one_line(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    body = json.dumps({"error": {"message": "no such\nmodel", "type": "invalid_request_error"}})
    assert chat(serve([body], status=404)) == 1
    assert capsys.readouterr().err == "firstlight: HTTP 404: no such; model\n"


def test_an_error_in_mid_stream_is_one_line(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    error = "data: " + json.dumps({"error": {"message": "gone", "type": "server_error"}})
    assert chat(serve([*STREAM[:2], error])) == 1
    assert capsys.readouterr().err.splitlines() == ["firstlight: the stream: gone"]


def test_a_dash_reads_the_question_from_standard_input(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("From a\nfile?\n"))
    assert cli.run(["chat", "--url", serve(STREAM), "--http", "1", "-"]) == 0
    assert SEEN["body"]["messages"][0]["content"] == "From a\nfile?\n"


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{unused.getsockname()[1]}"
        for version in ("1", "2", "3"):
            assert cli.run(["chat", "--url", url, "--http", version, "Why?"]) == 1
            (line,) = capsys.readouterr().err.splitlines()
            assert url.removeprefix("https://") in line


BEGUN = [
    chunk("", cap="seal", seed=7, **{"class": "c0"}, edge="edge-eu"),
    chunk("Blue", offset=1, ids=[11, 12]),
]
REST = [chunk("", cap="seal", edge="edge-us"), chunk(" light", offset=3, ids=[12, 13]), *STREAM[4:]]
QUESTION = Question("Why?")


async def test_the_rest_of_a_broken_stream_is_asked_for_elsewhere(serve: Serve) -> None:
    asked = await ask(serve(BEGUN), QUESTION, others=[serve(REST)], http="1")
    resume = {"cap": "seal", "seed": 7, "class": "c0", "ids": [[11]]}
    assert SEEN["body"]["firstlight"]["resume"] == resume
    assert (asked.reply.text, asked.reply.token_ids) == ("Blue light", [11, 12, 13])
    assert (asked.resumed, asked.reply.finish_reason) == (1, "stop")


async def test_a_stream_that_breaks_again_and_again_is_given_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PAUSE_BASE_S", 0.0)
    with pytest.raises(PeerError, match="ended before the answer did, after 0 tokens"):
        await ask(serve(BEGUN[:1]), QUESTION, http="1")


async def test_a_complete_answer_whose_connection_then_breaks_is_not_asked_for_again(
    serve: Serve,
) -> None:
    url = serve([*BEGUN, chunk(" light", offset=3, ids=[13]), *STREAM[4:]], missing_bytes=5)
    asked = await ask(url, QUESTION, others=[serve(STREAM)], http="1")
    assert (asked.reply.text, asked.reply.token_ids) == ("Blue light", [11, 12, 13])
    assert asked.resumed == 0
    alone = await ask(serve(STREAM, missing_bytes=5), QUESTION, http="1")  # nor is it an error
    assert alone.reply.text == "Blue light"


async def test_what_nobody_can_resume_is_asked_once(serve: Serve) -> None:
    with pytest.raises(PeerError, match="ended before the answer did"):
        await ask(serve(STREAM[:2]), QUESTION, http="1")


async def test_a_refusal_to_go_on_is_the_error(serve: Serve) -> None:
    refused = ['{"error": {"message": "too old", "type": "invalid_request_error"}}']
    with pytest.raises(RequestError, match="HTTP 400: too old"):
        await ask(serve(BEGUN), QUESTION, others=[serve(refused, 400)], http="1")


async def test_an_edge_that_begins_again_is_found_out(serve: Serve) -> None:
    again = [chunk("", cap="seal"), chunk("Blue", offset=0, ids=[11])]
    with pytest.raises(PeerError, match="offset should be from 1 to 2 here, got 0"):
        await ask(serve(BEGUN), QUESTION, others=[serve(again)], http="1")


@pytest.mark.parametrize("offset", ["x", None, -1, 9, True, 1e99])
async def test_an_offset_that_cannot_be_is_an_error(serve: Serve, offset: object) -> None:
    lines = [BEGUN[0], chunk("Blue", offset=offset, ids=[11])]
    with pytest.raises(PeerError, match="offset should be from 0 to 1"):
        await ask(serve(lines), QUESTION, http="1")
