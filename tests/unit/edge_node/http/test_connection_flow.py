"""A connection buffers no more than its windows and marks allow, in both directions."""

import asyncio
import json
from typing import Any

from aioquic.h3.connection import ErrorCode
from asgi_app import App

KIB = 1024


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
    await pair.cancel_tasks()
    assert not pair.edge.quic._waiting_bytes


async def test_one_endless_body_stops_at_the_window_of_its_stream(join: Any, app: App) -> None:
    pair = join(app, stream_window_bytes=64 * KIB, connection_window_bytes=1024 * KIB)
    stream_id = pair.request("/idle", end=False)
    await pair.settle()
    pair.send_body(stream_id, b"x" * 1_000_000)
    pair.turn(400)
    queued = sum(map(len, pair.edge.exchanges[stream_id]._body))
    assert 60 * KIB < queued <= 64 * KIB
    await pair.cancel_tasks()


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


async def test_send_waits_at_the_high_water_mark(join: Any, app: App) -> None:
    pair = join(app, stream_unacked_bytes_max=128 * KIB)
    pair.request("/flood")
    pair.turn()
    for _ in range(100):
        await asyncio.sleep(0)
        pair.turn(2, deliver_to_client=False)
    assert 100 * KIB < app.sent_bytes <= 128 * KIB + 20_000
    await pair.cancel_tasks()


async def test_one_large_body_is_not_buffered_whole(pair: Any, app: App) -> None:
    stream_id = pair.request("/one_piece")
    pair.turn()
    for _ in range(100):
        await asyncio.sleep(0)
        pair.turn(2, deliver_to_client=False)
    assert pair.edge.unacked_bytes(stream_id) <= 128 * KIB + 40_000
    await pair.settle(80)
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
