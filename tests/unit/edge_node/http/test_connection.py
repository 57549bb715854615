"""A connection answers good requests, refuses malformed ones, and closes on a breach of HTTP/3."""

import json
from typing import Any

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import ErrorCode, FrameType, Setting
from asgi_app import App

KIB = 1024


async def test_a_request_is_answered_with_a_date(pair: Any, app: App) -> None:
    stream_id = pair.request("/?a=1", [(b"x-a", b"b")])
    await pair.settle()
    assert pair.answers[stream_id][b":status"] == b"200"
    assert pair.answers[stream_id][b"date"].endswith(b"GMT")
    assert pair.bodies[stream_id] == b"0"
    assert app.scopes[0]["state"] == {"from": "lifespan"}
    assert app.scopes[0]["client"] == ("10.0.0.1", 1000)


async def test_settings_come_with_the_servers_first_packets(join: Any, app: App) -> None:
    pair = join(app, rounds=0)
    pair.turn(1)
    assert pair.h3.received_settings[Setting.MAX_FIELD_SECTION_SIZE] > 0
    assert not pair.edge.quic.handshaken, "it has heard nothing else of the client"


async def test_head_has_no_body_and_ends(pair: Any) -> None:
    fields = [(b":method", b"HEAD"), (b":scheme", b"https")]
    stream_id = pair.send_fields([*fields, (b":authority", b"localhost"), (b":path", b"/")])
    await pair.settle()
    assert pair.bodies[stream_id] == b""
    assert stream_id in pair.ended
    assert not pair.edge.quic.h3._stream.keys() & {stream_id}


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
    assert not pair.edge.quic.h3._refused


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
