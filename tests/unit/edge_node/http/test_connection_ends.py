"""An application that fails or a client that goes ends one exchange, and nothing is kept."""

import asyncio
from typing import Any

import pytest
from aioquic.h3.connection import ErrorCode
from asgi_app import App

KIB = 1024


@pytest.mark.parametrize("path", ["/fail", "/silent"])
async def test_an_application_that_fails_is_answered_500_once_without_detail(
    pair: Any, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream_id = pair.request(path)
    await pair.settle()
    assert pair.answers[stream_id][b":status"] == b"500"
    assert b"secret" not in pair.bodies[stream_id]
    assert stream_id in pair.ended
    assert path in caplog.text


async def test_an_application_that_fails_within_its_answer_resets_the_stream(pair: Any) -> None:
    stream_id = pair.request("/fail_late")
    await pair.settle()
    assert pair.resets[stream_id] == ErrorCode.H3_INTERNAL_ERROR
    assert pair.closed is None


async def test_an_answer_shorter_than_its_content_length_resets_the_stream(pair: Any) -> None:
    stream_id = pair.request("/too_short")
    await pair.settle()
    assert pair.resets[stream_id] == ErrorCode.H3_INTERNAL_ERROR


async def test_an_application_that_fails_after_its_answer_does_not_spoil_it(
    pair: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stream_id = pair.request("/fail_after")
    await pair.settle()
    assert pair.bodies[stream_id] == b"sorry"
    assert stream_id in pair.ended
    assert stream_id not in pair.resets
    assert "LookupError" in caplog.text


def stop_sending(pair: Any, stream_id: int) -> None:
    pair.client.stop_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)


def reset_stream(pair: Any, stream_id: int) -> None:
    pair.client.reset_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)


def close(pair: Any, stream_id: int) -> None:
    pair.client.close(ErrorCode.H3_NO_ERROR)


@pytest.mark.parametrize("cancel", [stop_sending, reset_stream, close])
@pytest.mark.parametrize("path", ["/wait", "/stream"])
async def test_a_cancel_of_any_kind_is_one_disconnect(
    pair: Any, app: App, path: str, cancel: Any
) -> None:
    stream_id = pair.request(path, end=False)
    await pair.settle()
    assert not app.disconnects
    cancel(pair, stream_id)
    await pair.settle()
    assert app.disconnects == 1
    assert pair.tasks[0].done()
    assert pair.bodies.get(stream_id, b"") == (b"first" if path == "/stream" else b"")


@pytest.mark.parametrize("cancel", [stop_sending, close])
async def test_a_cancel_wakes_a_send_that_waits(pair: Any, app: App, cancel: Any) -> None:
    stream_id = pair.request("/one_piece")
    pair.turn()
    await asyncio.sleep(0)
    assert not pair.tasks[0].done()
    cancel(pair, stream_id)
    pair.turn()
    await asyncio.wait(pair.tasks, timeout=1.0)
    assert pair.tasks[0].done()


@pytest.mark.parametrize("cancel", [stop_sending, reset_stream, close])
async def test_a_cancel_before_the_application_starts_is_its_first_message(
    pair: Any, app: App, cancel: Any
) -> None:
    stream_id = pair.request("/wait", end=False)
    pair.turn()
    cancel(pair, stream_id)
    pair.turn()
    assert not app.scopes
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [message["type"] for message in app.messages] == ["http.disconnect"]


async def test_a_silent_client_is_disconnected_after_the_idle_timeout(join: Any, app: App) -> None:
    pair = join(app, idle_timeout_s=25.0)
    pair.request("/wait")
    await pair.settle()
    due = pair.edge.quic.get_timer()
    assert due <= pair.now + 26.0
    for _ in range(40):
        due = pair.edge.quic.get_timer()
        if due is None:
            break
        pair.edge.handle_timer(due)
        if pair.edge.quic.addressed:
            pair.edge.quic.datagrams_to_send(now=due)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert app.disconnects == 1
    assert pair.edge.terminated
    assert due is None or due <= pair.now + 30.0


async def test_nothing_is_kept_of_requests_that_are_over(pair: Any) -> None:
    for path in ("/", "/fail", "/too_short", "/?x"):
        pair.request(path)
        await pair.settle()
    cancelled = pair.request("/wait", end=False)
    await pair.settle()
    reset_stream(pair, cancelled)
    stop_sending(pair, cancelled)
    await pair.settle(6)
    pair.edge.retire()
    assert not pair.edge.exchanges
    assert not [i for i in pair.edge.quic.h3._stream if i % 4 == 0]
    assert not pair.edge.quic.h3._refused
    assert not pair.edge.quic._waiting_bytes
