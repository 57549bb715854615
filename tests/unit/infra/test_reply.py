"""The fold over a stream's chunks: what is complete, what is an error, what is counted."""

import json
from typing import Any

import pytest

from firstlight.infra.reply import Reply, api_error
from firstlight.shared.errors import AuthError, PeerError, QuotaError, RequestError


def chunk(content: str | None = None, finish: str | None = None, **firstlight: Any) -> str:
    delta = {} if content is None else {"content": content}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"model": "m", "choices": [choice], "firstlight": firstlight})


def test_text_ids_and_details_are_put_together_in_order() -> None:
    reply = Reply()
    reply.feed(chunk("", seed=7, core="a"), 1.0)
    assert reply.feed(chunk("He", ids=[1, 2], offset=2), 2.0) == "He"
    reply.feed(chunk("y", ids=[3], offset=3), 3.0)
    reply.feed(chunk(finish="stop", core="b", moved=1), 3.1)
    reply.feed("[DONE]", 3.1)
    reply.close()
    assert (reply.text, reply.token_ids, reply.finish_reason) == ("Hey", [1, 2, 3], "stop")
    assert reply.details == {"seed": 7, "core": "b", "moved": 1, "offset": 3}


def test_the_answers_id_is_that_of_the_edge_that_served_it_last() -> None:
    reply = Reply()
    for id in ("chatcmpl-1", "chatcmpl-2"):
        reply.feed(json.dumps({"id": id}), 1.0)
    assert reply.id == "chatcmpl-2"


def test_speed_is_counted_from_the_first_token_to_the_last() -> None:
    reply = Reply()
    reply.feed(chunk("a", ids=[1]), 2.0)
    reply.feed(chunk("b", ids=[2, 3, 4]), 3.5)
    assert reply.tokens_per_s() == 2.0


def test_one_token_has_no_speed() -> None:
    reply = Reply()
    reply.feed(chunk("a", ids=[1]), 2.0)
    assert reply.tokens_per_s() is None


@pytest.mark.parametrize(
    "payloads",
    [
        [],
        [chunk("a", ids=[1])],
        [chunk("a", ids=[1], finish="stop")],
        [chunk("a", ids=[1]), "[DONE]"],
    ],
    ids=["nothing", "no finish", "no [DONE]", "[DONE] without finish"],
)
def test_a_stream_without_its_ending_is_an_error(payloads: list[str]) -> None:
    reply = Reply()
    for payload in payloads:
        reply.feed(payload, 1.0)
    with pytest.raises(PeerError, match="ended before the answer did"):
        reply.close()


def test_an_error_inside_the_stream_is_raised_as_the_error_that_it_is() -> None:
    payload = json.dumps({"error": {"message": "too long", "type": "invalid_request_error"}})
    with pytest.raises(RequestError, match="the stream: too long"):
        Reply().feed(payload, 1.0)


@pytest.mark.parametrize("payload", ["{", "[]", '"x"', '{"choices": [1]}', "[" * 100_000])
def test_what_is_no_chunk_is_an_error_and_not_a_crash(payload: str) -> None:
    with pytest.raises(PeerError):
        Reply().feed(payload, 1.0)


def test_ids_that_are_no_integers_are_refused() -> None:
    with pytest.raises(PeerError, match="ids should be"):
        Reply().feed(chunk("a", ids=["1"]), 1.0)


def test_nothing_may_follow_the_ending() -> None:
    reply = Reply()
    reply.feed("[DONE]", 1.0)
    with pytest.raises(PeerError, match="went on after"):
        reply.feed(chunk("a"), 1.0)


def test_the_usage_chunk_without_choices_adds_nothing() -> None:
    assert Reply().feed('{"choices": [], "usage": {"total_tokens": 3}}', 1.0) == ""


def test_hints_are_added_up_over_their_sources() -> None:
    reply = Reply()
    edge = {"offered": 9, "verified": 6, "accepted": 4}
    core = {"offered": 1, "verified": 1, "accepted": 0}
    reply.feed(chunk(finish="stop", hints={"edge-ngram": edge, "core-ngram": core}), 1.0)
    totals = reply.hint_totals()
    assert (totals["offered"], totals["verified"], totals["accepted"]) == (10, 7, 4)
    assert totals["by_source"] == {"edge-ngram": edge, "core-ngram": core}


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("invalid_request_error", RequestError),
        ("authentication_error", AuthError),
        ("rate_limit_error", QuotaError),
        ("server_error", PeerError),
    ],
)
def test_an_error_body_names_its_class_and_its_status(kind: str, error: type[Exception]) -> None:
    raised = api_error(418, json.dumps({"error": {"message": "no", "type": kind}}))
    assert type(raised) is error
    assert raised.message == "HTTP 418: no"


@pytest.mark.parametrize("body", [b"<h1>Bad  gateway</h1>", b"\xff", b"", b"[]"])
def test_an_error_body_of_any_other_kind_is_quoted_on_one_line(body: bytes) -> None:
    raised = api_error(502, body)
    assert raised.message.startswith("HTTP 502: ")
    assert "\n" not in raised.message
