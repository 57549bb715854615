import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import ErrorCode, FrameType, Setting

KIB = 1024


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


@pytest.fixture
async def app() -> App:
    return App()


@pytest.fixture
async def pair(join: Callable[..., Any], app: App) -> Any:
    pair = join(app)
    yield pair
    for task in pair.tasks:
        task.cancel()
    await asyncio.gather(*pair.tasks, return_exceptions=True)


async def test_a_request_is_answered_with_a_date(pair: Any, app: App) -> None:
    stream_id = pair.request("/?a=1", [(b"x-a", b"b")])
    await pair.settle()
    assert pair.answers[stream_id][b":status"] == b"200"
    assert pair.answers[stream_id][b"date"].endswith(b"GMT")
    assert pair.bodies[stream_id] == b"0"
    assert app.scopes[0]["state"] == {"from": "lifespan"}
    assert app.scopes[0]["client"] == ("10.0.0.1", 1000)


async def test_head_has_no_body_and_ends(pair: Any) -> None:
    fields = [(b":method", b"HEAD"), (b":scheme", b"https")]
    stream_id = pair.send_fields([*fields, (b":authority", b"localhost"), (b":path", b"/")])
    await pair.settle()
    assert pair.bodies[stream_id] == b""
    assert stream_id in pair.ended
    assert not pair.edge._h3._stream.keys() & {stream_id}


MALFORMED = {
    "no scheme": [(b":method", b"GET"), (b":authority", b"localhost"), (b":path", b"/")],
    "no path": [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"localhost")],
    "upper case": [(b"X-A", b"1")],
    "connection": [(b"connection", b"close")],
    "signed length": [(b"content-length", b"+0")],
    "two lengths": [(b"content-length", b"0"), (b"content-length", b"1")],
    "other host": [(b"host", b"evil")],
    "pseudo-field after regular": [(b"a", b"b"), (b":path", b"/x")],
    "length without body": [(b"content-length", b"5")],
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_a_malformed_request_is_answered_400_and_costs_only_its_stream(
    pair: Any, app: App, case: str
) -> None:
    other = pair.request("/stream")
    await pair.settle()
    fields = MALFORMED[case]
    whole = fields[0][0].startswith(b":")
    bad = pair.send_fields(fields) if whole else pair.request("/echo", fields)
    await pair.settle()
    assert pair.answers[bad][b":status"] == b"400"
    assert json.loads(pair.bodies[bad])["error"]["type"] == "invalid_request_error"
    assert pair.closed is None
    assert not app.disconnects
    assert pair.bodies[other] == b"first"
    assert not pair.edge._h3._refused


@pytest.mark.parametrize("sent", [b"1234", b"123456"])
async def test_a_body_unlike_its_content_length_is_an_error_of_its_stream(
    pair: Any, app: App, sent: bytes
) -> None:
    stream_id = pair.request("/wait", [(b"content-length", b"5")], end=False)
    await pair.settle()
    pair.send_body(stream_id, sent, end=True)
    await pair.settle()
    assert pair.answers[stream_id][b":status"] == b"400"
    assert app.disconnects == 1
    assert pair.closed is None
    ok = pair.request()
    await pair.settle()
    assert pair.answers[ok][b":status"] == b"200"


async def test_connect_is_not_served(pair: Any, app: App) -> None:
    stream_id = pair.send_fields([(b":method", b"CONNECT"), (b":authority", b"a:1")], end=False)
    await pair.settle()
    assert pair.answers[stream_id][b":status"] == b"501"
    assert not app.scopes


async def test_fields_that_decode_to_more_than_our_settings_allow_are_answered_431(
    pair: Any, app: App
) -> None:
    stream_id = pair.request("/", [(b"accept", b"*/*")] * 2000)
    await pair.settle()
    assert pair.answers[stream_id][b":status"] == b"431"
    assert pair.closed is None
    assert not app.scopes


@pytest.mark.parametrize("length", [16 * KIB + 1, 1 << 40])
async def test_a_giant_headers_frame_closes_the_connection_before_its_payload(
    pair: Any, length: int
) -> None:
    frame = encode_uint_var(FrameType.HEADERS) + encode_uint_var(length)
    pair.client.send_stream_data(pair.stream_id(), frame)
    pair.turn()
    assert pair.closed.error_code == ErrorCode.H3_EXCESSIVE_LOAD


async def test_a_giant_settings_frame_closes_the_connection(tls: Any, join: Any, app: App) -> None:
    pair = join(app)
    control = pair.h3._local_control_stream_id
    frame = encode_uint_var(FrameType.MAX_PUSH_ID) + encode_uint_var(1 << 30)
    pair.client.send_stream_data(control, frame)
    pair.turn()
    assert pair.closed.error_code == ErrorCode.H3_EXCESSIVE_LOAD


async def test_settings_offer_no_dynamic_table_and_no_connect_protocol(pair: Any) -> None:
    settings = pair.h3.received_settings
    assert settings[Setting.QPACK_MAX_TABLE_CAPACITY] == 0
    assert settings[Setting.QPACK_BLOCKED_STREAMS] == 0
    assert settings[Setting.MAX_FIELD_SECTION_SIZE] == 32 * KIB
    assert Setting.ENABLE_CONNECT_PROTOCOL not in settings


async def test_a_dynamic_table_that_we_did_not_offer_closes_the_connection(pair: Any) -> None:
    insert = b"\x3f\xe1\x1f" + b"\x41a\x01b"  # capacity 4096, then an entry
    pair.client.send_stream_data(pair.h3._local_encoder_stream_id, insert)
    pair.turn()
    assert pair.closed.error_code == ErrorCode.QPACK_ENCODER_STREAM_ERROR


# Windows.


async def test_an_endless_body_to_an_application_that_does_not_read_stops_at_the_window(
    join: Any, app: App
) -> None:
    pair = join(app, stream_window_bytes=64 * KIB, connection_window_bytes=256 * KIB)
    streams = [pair.request("/idle", end=False) for _ in range(8)]
    await pair.settle()
    for stream_id in streams:
        pair.send_body(stream_id, b"x" * 1_000_000)
    pair.turn(400)
    queued = [sum(map(len, e._body)) for e in pair.edge.exchanges.values()]
    assert max(queued) <= 64 * KIB
    assert sum(queued) <= 256 * KIB
    assert sum(queued) > 128 * KIB
    for task in pair.tasks:
        task.cancel()
    await asyncio.gather(*pair.tasks, return_exceptions=True)
    assert not pair.edge.quic._waiting_bytes


async def test_one_endless_body_stops_at_the_window_of_its_stream(join: Any, app: App) -> None:
    pair = join(app, stream_window_bytes=64 * KIB, connection_window_bytes=1024 * KIB)
    stream_id = pair.request("/idle", end=False)
    await pair.settle()
    pair.send_body(stream_id, b"x" * 1_000_000)
    pair.turn(400)
    queued = sum(map(len, pair.edge.exchanges[stream_id]._body))
    assert 60 * KIB < queued <= 64 * KIB
    for task in pair.tasks:
        task.cancel()
    await asyncio.gather(*pair.tasks, return_exceptions=True)


async def test_an_honest_upload_of_many_windows_passes(join: Any, app: App) -> None:
    pair = join(app, stream_window_bytes=16 * KIB, connection_window_bytes=32 * KIB)
    stream_id = pair.request("/echo", end=False)
    for _ in range(20):
        pair.send_body(stream_id, b"x" * 50_000)
    pair.send_body(stream_id, b"", end=True)
    await pair.settle(200)
    assert pair.bodies[stream_id] == b"1000000"


async def test_credit_of_the_connection_does_not_leak_over_many_requests(
    join: Any, app: App
) -> None:
    pair = join(app, stream_window_bytes=16 * KIB, connection_window_bytes=32 * KIB)
    for _ in range(60):
        stream_id = pair.request("/echo", [(b"x-pad", b"y" * 3000)], end=False)
        pair.send_body(stream_id, b"x" * 100, end=True)
        await pair.settle(1)
    await pair.settle()
    assert pair.bodies[stream_id] == b"100"


async def test_a_body_above_its_cap_is_answered_413_once_and_stopped(join: Any, app: App) -> None:
    pair = join(app, body_bytes_max=50_000)
    stream_id = pair.request("/wait", end=False)
    await pair.settle()
    for _ in range(10):
        pair.send_body(stream_id, b"x" * 20_000)
    await pair.settle()
    assert pair.answers[stream_id][b":status"] == b"413"
    assert json.loads(pair.bodies[stream_id])["error"]["message"]
    assert pair.stops[stream_id] == ErrorCode.H3_NO_ERROR
    assert app.disconnects == 1
    assert pair.closed is None
    assert not pair.edge.quic._waiting_bytes


async def test_a_declared_body_above_its_cap_never_reaches_the_application(
    join: Any, app: App
) -> None:
    pair = join(app, body_bytes_max=50_000)
    stream_id = pair.request("/wait", [(b"content-length", b"50001")], end=False)
    await pair.settle()
    assert pair.answers[stream_id][b":status"] == b"413"
    assert stream_id in pair.stops
    assert not app.scopes


async def test_an_answer_before_the_body_was_read_stops_the_upload(pair: Any, app: App) -> None:
    stream_id = pair.request("/too_short", end=False)
    await pair.settle()
    assert stream_id in pair.stops


async def test_a_body_that_comes_after_its_early_answer_is_dropped(pair: Any, app: App) -> None:
    stream_id = pair.request("/fail", end=False)
    pair.turn()
    for _ in range(3):
        await asyncio.sleep(0)
    pair.turn(2, deliver_to_client=False)
    pair.send_body(stream_id, b"x" * 5000)
    await pair.settle()
    assert pair.closed is None
    other = pair.request("/")
    await pair.settle()
    assert pair.answers[other][b":status"] == b"200"


# Sending.


async def test_send_waits_at_the_high_water_mark(join: Any, app: App) -> None:
    pair = join(app, stream_unacked_bytes_max=128 * KIB)
    pair.request("/flood")
    pair.turn()
    for _ in range(100):
        await asyncio.sleep(0)
        pair.turn(2, deliver_to_client=False)
    assert 100 * KIB < app.sent_bytes <= 128 * KIB + 20_000
    for task in pair.tasks:
        task.cancel()
    await asyncio.gather(*pair.tasks, return_exceptions=True)


async def test_one_large_body_is_not_buffered_whole(pair: Any, app: App) -> None:
    stream_id = pair.request("/one_piece")
    pair.turn()
    for _ in range(100):
        await asyncio.sleep(0)
        pair.turn(2, deliver_to_client=False)
    assert pair.edge.unacked_bytes(stream_id) <= 128 * KIB + 40_000
    await pair.settle(60)
    assert len(pair.bodies[stream_id]) == 1_000_000
    assert stream_id in pair.ended


async def test_a_client_that_acknowledges_nothing_is_cancelled(join: Any, app: App) -> None:
    pair = join(app, stall_timeout_s=30.0, idle_timeout_s=300.0)
    stream_id = pair.request("/flood")
    pair.turn()
    await asyncio.sleep(0)
    pair.edge.sweep(pair.now)
    pair.edge.sweep(pair.now + 29.0)
    assert pair.edge.exchanges[stream_id].gone is None
    pair.edge.sweep(pair.now + 31.0)
    assert "acknowledged nothing" in pair.edge.exchanges[stream_id].gone
    await asyncio.wait(pair.tasks, timeout=1)
    assert pair.tasks[0].done()
    pair.turn()
    assert pair.resets[stream_id] == ErrorCode.H3_REQUEST_CANCELLED


async def test_a_slow_client_that_makes_progress_is_not_cancelled(pair: Any, app: App) -> None:
    stream_id = pair.request("/one_piece")
    for _ in range(20):
        await pair.settle(1)
        pair.edge.sweep(pair.now)
        pair.now += 29.0 / 20
    assert stream_id not in pair.resets


# The application fails.


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


# The client goes.


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
    assert not [i for i in pair.edge._h3._stream if i % 4 == 0]
    assert not pair.edge._h3._refused
    assert not pair.edge.quic._waiting_bytes


# Drain.


async def test_a_drain_finishes_what_runs_refuses_what_comes_and_closes(
    pair: Any, app: App
) -> None:
    running = pair.request("/echo", end=False)
    await pair.settle()
    pair.edge.drain()
    pair.turn()
    refused = pair.request("/")
    await pair.settle()
    assert pair.resets[refused] == ErrorCode.H3_REQUEST_REJECTED
    assert pair.closed is None
    pair.send_body(running, b"abc", end=True)
    await pair.settle()
    assert pair.bodies[running] == b"3"
    assert running in pair.ended
    assert pair.closed.error_code == ErrorCode.H3_NO_ERROR
    assert len(app.scopes) == 1


async def test_an_unfinished_handshake_is_closed(join: Any, app: App) -> None:
    pair = join(app, handshake_timeout_s=5.0)
    pair.edge.quic._handshake_complete = False
    pair.edge.sweep(pair.now + 4.0)
    assert not pair.edge.quic.closing
    pair.edge.sweep(pair.now + 6.0)
    assert pair.edge.quic.closing
