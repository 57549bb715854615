"""The client against a server of the API: what it asks, what it counts, what it makes of errors."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai_bed import OpenAiServer, openai_server

from firstlight.infra.bench.engine import client, scenarios
from firstlight.infra.bench.engine.client import Answer, Server, open_server
from firstlight.infra.bench.engine.invariant import differing, texts_that_differ
from firstlight.infra.bench.engine.scenarios import SCENARIOS
from firstlight.shared.errors import PeerError

Do = Callable[[Server], Any]


def prompt(tokens: int, index: int) -> str:
    return f"{index} " + "word " * (tokens - 1)


async def asked(bed: OpenAiServer, do: Do, **told: Any) -> Any:
    async with open_server(bed.url, verify=True, **told) as server:
        return await do(server)


async def test_an_answer_has_its_text_its_tokens_and_an_arrival_an_event() -> None:
    with openai_server(token_s=0.01, extra={"class": "abc"}) as bed:
        answer = await asked(bed, lambda server: server.ask("hi", 3))
    assert answer.text == "hiNone0 " * 3
    assert answer.timing.tokens == 3
    assert len(answer.events_s) == 3
    assert answer.timing.ttft_ms >= 10.0
    assert answer.details["class"] == "abc"


async def test_a_server_without_usage_is_taken_to_send_a_token_an_event() -> None:
    with openai_server(usage=False) as bed:
        answer = await asked(bed, lambda server: server.ask("hi", 4))
    assert answer.timing.tokens == 4


async def test_answers_are_asked_to_go_on_and_to_tell_usage() -> None:
    with openai_server() as bed:
        await asked(bed, lambda server: server.ask("hi", 2), key="secret")
    body = bed.bodies[-1]
    assert body["model"] == "tiny"
    assert body["ignore_eos"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert bed.keys == {"Bearer secret"}


@pytest.mark.parametrize(
    ("refused", "left"),
    [({"firstlight"}, {"ignore_eos"}), ({"ignore_eos"}, set()), (set(), {"ignore_eos"})],
)
async def test_what_a_server_refuses_is_not_asked_again(refused: set[str], left: set[str]) -> None:
    with openai_server(refused=frozenset(refused)) as bed:
        await asked(bed, lambda server: server.ask("hi", 2))
    assert bed.bodies[-1].keys() & {"ignore_eos"} == left
    assert not refused & bed.bodies[-1].keys()


async def test_a_refused_request_is_a_failure_with_its_reason() -> None:
    with openai_server(words_max=100) as bed:
        outcome = await asked(bed, lambda server: SCENARIOS["single_512"](server, prompt))
    assert (outcome.failed, outcome.figures) == (1, {})
    assert "too long" in outcome.why
    assert bed.bodies[-1]["ignore_eos"] is True


async def test_a_server_that_is_not_there_is_named() -> None:
    with openai_server() as bed:
        pass
    with pytest.raises(PeerError, match=f"no server answers at {bed.url}"):
        await asked(bed, lambda server: server.ask("hi", 1))


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        '{"choices": 3}',
        "nonsense",
        '{"error": {"message": "x"}}',
        '{"choices": {"a": 1}}',
        '{"choices": ["a"]}',
        '{"choices": [{"text": 7}]}',
        '{"usage": "much"}',
        '{"usage": {"completion_tokens": "3"}}',
        '{"usage": {"completion_tokens": -3}}',
        '{"firstlight": "x"}',
        "[" * 100_000,
    ],
)
def test_what_is_no_chunk_or_an_error_ends_the_answer(line: str) -> None:
    with pytest.raises(PeerError):
        Answer(0.0).feed(line, 1.0)


OK, CHUNK = b"HTTP/1.1 200 OK\r\n\r\n", b'data: {"choices": [{"text": "a"}]}\n\n'


async def streamed(*pieces: bytes, forever: bool = False) -> Answer:
    """What a client makes of a server that sends these bytes, perhaps again and again, and ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, more = pieces[0], b"".join(pieces[1:])
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head + more)
            while forever:
                writer.write(more)
                await writer.drain()
                await asyncio.sleep(0.001)
        except OSError:
            pass  # the client has left
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with httpx.AsyncClient(trust_env=False) as http:
            return await Server(http, url, "tiny").ask("hi", 3)


async def test_an_answer_without_its_end_has_broken_off() -> None:
    with pytest.raises(PeerError, match="broke off after 2 events"):
        await streamed(OK, CHUNK, CHUNK)
    assert (await streamed(OK, CHUNK, CHUNK, b"data: [DONE]\n\n")).text == "aa"


@pytest.mark.parametrize("more", [CHUNK, b"data: x\n", b": nothing\n\n", b"x"])
async def test_an_answer_of_more_bytes_than_any_has_is_given_up(
    more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_BYTES_MAX", 4096)
    with pytest.raises(PeerError, match="an answer of more than 4096 bytes"):
        await streamed(OK, more * 100, forever=True)


async def test_an_answer_that_comes_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WHOLE_ANSWER_S", 0.2)
    with pytest.raises(PeerError, match=r"no end of an answer in 0\.2 s, after [1-9]\d* events"):
        await streamed(OK, CHUNK, forever=True)


async def test_an_error_page_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_BYTES_MAX", 4096)
    with pytest.raises(PeerError, match="HTTP 500: <html>"):
        await streamed(b"HTTP/1.1 500 No\r\n\r\n", b"<html>", forever=True)


async def test_a_page_where_a_completion_was_expected_is_shown() -> None:
    with (
        openai_server(completion="<html>welcome</html>") as bed,
        pytest.raises(PeerError, match=r"answers with no completion: .*welcome"),
    ):
        await asked(bed, lambda server: server.ask("hi", 1))


async def test_every_scenario_gives_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "BEFORE_S", 0.05)
    monkeypatch.setattr(scenarios, "OTHERS_OUT", 100)

    async def all_of_them(server: Server) -> dict[str, scenarios.Outcome]:
        return {name: await run(server, prompt) for name, run in SCENARIOS.items()}

    with openai_server(token_s=0.002) as bed:
        outcomes = await asked(bed, all_of_them)
    always = {"ttft_ms", "tpot_ms", "tokens_per_s"}
    more = {
        "streams_16": {"ttft_p95_ms", "gap_p99_ms"},
        "streams_64": {"ttft_p95_ms", "gap_p99_ms"},
        "interference": {"gap_p50_before_ms", "gap_max_ms", "gap_p99_ms"},
        "prefix": {"cold_ms"},
    }
    for name, outcome in outcomes.items():
        assert (outcome.failed, outcome.why) == (0, ""), name
        assert outcome.figures.keys() == always | more.get(name, set()), name
        assert (outcome.figures["ttft_ms"] or 0) >= 2.0, name


async def test_streams_that_end_before_the_long_prompt_comes_have_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scenarios, "BEFORE_S", 0.2)
    monkeypatch.setattr(scenarios, "OTHERS_OUT", 3)
    with openai_server() as bed:
        outcome = await asked(bed, lambda server: scenarios.interference(server, prompt))
    assert outcome.failed == scenarios.OTHERS
    assert "had ended" in outcome.why


async def test_a_prompt_is_asked_again_word_by_word_for_the_prefix() -> None:
    with openai_server() as bed:
        await asked(bed, lambda server: scenarios.prefix(server, prompt))
    streamed = [body["prompt"] for body in bed.bodies if body["stream"]]
    assert len(streamed) == 1 + scenarios.PREFIX_HITS
    assert len(set(streamed)) == 1


async def test_a_server_whose_texts_stay_has_none_that_differ() -> None:
    with openai_server() as bed:
        assert await asked(bed, lambda server: texts_that_differ(server, prompt)) == []
    asked_of = {(body.get("seed"), body["temperature"]) for body in bed.bodies if body["stream"]}
    assert asked_of == {(None, 0), *((seed, 0.8) for seed in range(16))}


@pytest.mark.parametrize(("stream", "name"), [(20, "greedy 4"), (33, "greedy 16"), (66, "sampled")])
async def test_one_text_that_changed_is_found(stream: int, name: str) -> None:
    """Streams 0–15 are asked together, 16–31 alone, 32 and 33 again; then the same with a seed."""
    with openai_server(moody=frozenset({stream})) as bed:
        (found,) = await asked(bed, lambda server: texts_that_differ(server, prompt))
    assert found.startswith(name)


async def test_nothing_is_said_of_a_server_that_takes_no_seed() -> None:
    with openai_server(refused=frozenset({"seed"})) as bed:
        assert await asked(bed, lambda server: texts_that_differ(server, prompt)) is None


def test_a_text_that_is_missing_differs() -> None:
    assert differing({"a": "x", "b": None, "c": "z"}, {"a": "x", "b": None, "c": "y"}) == ["b", "c"]


async def test_requests_that_are_cancelled_end() -> None:
    with openai_server(token_s=0.01) as bed:
        async with open_server(bed.url, verify=True) as server:
            task = asyncio.create_task(server.ask("hi", 1000))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
