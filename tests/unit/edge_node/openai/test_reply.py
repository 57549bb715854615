"""Time and disconnects, over bare ASGI: what a client sees when, and what stops when it goes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from exchange import Exchange
from unit.edge_node.openai.script import ScriptAnswer, ScriptSource, app_for

from firstlight.edge_node.answer import Event
from firstlight.edge_node.middleware import AccessCounts
from firstlight.edge_node.openai.routes import ApiLimits
from firstlight.edge_node.openai.sessions import Pace

CHAT: dict[str, Any] = {"model": "tiny/bytes", "messages": [{"role": "user", "content": "hi"}]}
BOTH = pytest.mark.parametrize("stream", [True, False])


@asynccontextmanager
async def exchange(source: ScriptSource, **body: Any) -> AsyncIterator[Exchange]:
    pace = Pace(first_event_wait_s=0.05, keep_alive_s=0.02)
    counts = body.pop("counts", None)
    app = app_for(source, limits=ApiLimits(pace=pace), counts=counts)
    version = body.pop("version", "1.1")
    one = Exchange(app, "/v1/chat/completions", CHAT | body, version=version)
    try:
        yield one
    finally:
        one.task.cancel()
        await asyncio.gather(one.task, return_exceptions=True)


@BOTH
async def test_a_client_that_goes_cancels_a_running_answer(stream: bool) -> None:
    source, counts = ScriptSource([b"Hel", 60.0, b"lo"]), AccessCounts()
    async with exchange(source, stream=stream, counts=counts) as one:
        await one.until(lambda: bool(source.answers) and source.answers[0].pulled == 1)
        one.leave()
        async with asyncio.timeout(1):
            await one.task
        assert source.answers[0].closed == 1
        assert counts.ended == {("POST", "/v1/chat/completions", "h1", 499): 1}


@BOTH
async def test_a_client_that_goes_before_the_first_event_cancels_too(stream: bool) -> None:
    source = ScriptSource([60.0, b"Hel"])
    async with exchange(source, stream=stream) as one:
        await one.until(lambda: bool(source.answers))
        one.leave()
        async with asyncio.timeout(1):
            await one.task
        assert source.answers[0].closed == 1
        assert all(b"Hel" not in message.get("body", b"") for message in one.sent)


async def test_a_server_that_stops_cancels_the_answer() -> None:
    source = ScriptSource([b"Hel", 60.0])
    async with exchange(source, stream=True) as one:
        await one.until(lambda: len(one.sent) >= 2)
        one.task.cancel()
        await asyncio.gather(one.task, return_exceptions=True)
        assert source.answers[0].closed == 1


@BOTH
async def test_an_answer_that_is_cancelled_underneath_is_an_error(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(_: ScriptAnswer) -> list[Event]:
        raise asyncio.CancelledError

    monkeypatch.setattr(ScriptAnswer, "take", cancelled)
    async with exchange(ScriptSource(), stream=stream) as one:
        await one.task
        assert one.sent[0]["status"] == 502
        assert b"cancelled underneath" in one.body


async def test_an_answer_is_closed_when_it_ended() -> None:
    source = ScriptSource()
    async with exchange(source, stream=True) as one:
        await one.task
        assert source.answers[0].closed == 1
        assert one.body.endswith(b"data: [DONE]\n\n")
        assert one.sent[-1]["more_body"] is False


async def test_headers_wait_for_the_first_event_but_not_for_ever() -> None:
    async with exchange(ScriptSource([0.15, b"Hi"]), stream=True) as one:
        await asyncio.sleep(0.02)
        assert one.sent == []
        await one.task
        assert one.sent[0]["status"] == 200
        assert one.sent[1]["body"] == b":\n"
        assert b'"content":"Hi"' in one.body


async def test_silence_is_filled_with_comments() -> None:
    async with exchange(ScriptSource([b"H", 0.1, b"i"]), stream=True) as one:
        await one.task
        assert one.body.count(b"\n\n:\n") >= 1
        assert one.body.count(b":\n") >= 2
        lines = one.body.split(b"\n")
        assert all(line in (b"", b":") or line.startswith(b"data: ") for line in lines)


async def test_stream_headers_forbid_buffering() -> None:
    async with exchange(ScriptSource(), stream=True) as one:
        await one.task
        headers = dict(one.sent[0]["headers"])
        assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
        assert headers[b"cache-control"] == b"no-cache, no-transform"
        assert headers[b"x-accel-buffering"] == b"no"
        assert headers[b"x-firstlight-core"] == b"core-1"
        assert b"content-length" not in headers


async def test_a_slow_client_slows_the_source() -> None:
    source = ScriptSource([b"x"] * 100)
    async with exchange(source, stream=True) as one:
        one.writable.clear()
        await asyncio.sleep(0.05)
        assert source.answers[0].pulled == 1
        one.writable.set()
        await one.task
        assert source.answers[0].pulled == 101  # the end of the text is the last


@pytest.mark.parametrize(("version", "protocol"), [("1.1", "h1"), ("2", "h2"), ("3", "h3")])
async def test_the_protocol_is_told(version: str, protocol: str) -> None:
    async with exchange(ScriptSource(), stream=True, version=version) as one:
        await one.task
        assert f'"protocol":"{protocol}"'.encode() in one.body


async def test_choices_interleave_and_each_has_its_own_ending() -> None:
    async with exchange(ScriptSource([b"ab", 0.01, b"c"]), stream=True, n=2) as one:
        await one.task
        events = [
            json.loads(line[6:]) for line in one.body.decode().split("\n\n")[:-2] if line[6] == "{"
        ]
        for index in (0, 1):
            mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
            assert mine[0]["delta"]["role"] == "assistant"
            assert "".join(c["delta"].get("content", "") for c in mine) == "abc"
            assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
        assert {e["firstlight"].get("stream") for e in events} == {"stream-0", "stream-1", None}
