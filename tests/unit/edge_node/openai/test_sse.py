"""A stream's bytes, chunk by chunk."""

import json
from dataclasses import replace

import pytest
from unit.edge_node.openai.script import ByteTokenizer

from firstlight.edge_node.answer import Ask, ChoiceStats, Event, TokenText
from firstlight.edge_node.openai.objects import (
    Chat,
    Completions,
    Dialect,
    Object,
    Origin,
    Served,
    usage,
)
from firstlight.edge_node.openai.sse import KEEP_ALIVE, StreamWriter, error_line, merged
from firstlight.shared.errors import CapacityError, PeerError
from firstlight.shared.types import FinishReason, Sampling, TokenLogprobs

STATS = ChoiceStats(core="core-1", region="eu", numerics_class="abc", completion_tokens=3)
ORIGIN = Origin("chatcmpl-1", "m", 1700, 42, "edge-1", "eu", "h3")


def writer(dialect: Dialect | None = None, choices: int = 1, usage: bool = False) -> StreamWriter:
    served = {i: Served(f"s{i}", lambda: STATS) for i in range(choices)}
    spoken = dialect or Chat(ByteTokenizer().token_bytes, logprobs=False)
    return StreamWriter(spoken, ORIGIN, served, cap="seal", include_usage=usage)


def read(raw: bytes) -> list[Object]:
    *lines, last = raw.decode().split("\n\n")
    assert last == ""
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


def test_the_first_chunk_says_the_role_and_who_serves() -> None:
    first, second = read(writer().chunks([Event(0, "Hi", (72, 105), 2)]))
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert first["firstlight"] == {
        "stream": "s0",
        "seed": 42,
        "class": "abc",
        "edge": "edge-1",
        "edge_region": "eu",
        "core": "core-1",
        "region": "eu",
        "protocol": "h3",
        "cap": "seal",
    }
    assert second["choices"][0]["delta"] == {"content": "Hi"}  # type: ignore[index]
    assert second["firstlight"] == {"offset": 2, "ids": [72, 105]}


def test_a_choice_that_moves_before_its_first_event_names_the_core_that_serves_it() -> None:
    stats = [STATS, STATS]
    served = {i: Served(f"s{i}", lambda i=i: stats[i]) for i in (0, 1)}
    chat = Chat(ByteTokenizer().token_bytes, logprobs=False)
    moving = StreamWriter(chat, ORIGIN, served, cap="seal", include_usage=False)
    stats[0] = replace(STATS, core="core-2", numerics_class="xyz")
    first, _ = read(moving.chunks([Event(0, "a", (1,), 1)]))
    assert first["system_fingerprint"] == "fp_xyz"
    assert (first["firstlight"]["core"], first["firstlight"]["class"]) == ("core-2", "xyz")  # type: ignore[index]
    stats[1] = replace(STATS, core="core-3")
    later, _ = read(moving.chunks([Event(1, "b", (2,), 1)]))
    assert later["firstlight"]["core"] == "core-3"  # type: ignore[index]
    assert later["system_fingerprint"] == "fp_xyz"


def test_a_prompt_counts_once_and_so_does_what_was_cached_of_it() -> None:
    ask = Ask("t", "m", ((1, 2, 3), (4,)), Sampling(), seed=1, max_tokens=4, context_max=9, n=2)
    choices = [
        ChoiceStats(cached_tokens=cached, completion_tokens=tokens)
        for cached, tokens in ((2, 4), (3, 3), (1, 2), (1, 1))
    ]
    counts = usage(ask, choices)
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (4, 10)
    assert counts["prompt_tokens_details"] == {"cached_tokens": 3}


def test_events_of_one_choice_that_are_ready_together_are_one_chunk() -> None:
    events = [Event(0, "a", (1,), 1), Event(1, "x", (5,), 1), Event(0, "b", (2,), 2)]
    chunks = read(writer(choices=2).chunks(events))
    pieces = [chunk for chunk in chunks if "role" not in chunk["choices"][0]["delta"]]  # type: ignore[index]
    assert [piece["choices"][0]["delta"]["content"] for piece in pieces] == ["ab", "x"]  # type: ignore[index]
    assert [piece["firstlight"]["ids"] for piece in pieces] == [[1, 2], [5]]  # type: ignore[index]


def test_the_last_chunk_has_a_reason_and_an_empty_delta() -> None:
    chunks = read(writer().chunks([Event(0, "x", (1,), 1, finish=FinishReason.LENGTH)]))
    last = chunks[-1]
    assert last["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    ]
    told = last["firstlight"]
    assert isinstance(told, dict)
    assert told.keys() >= {"edge", "core", "region", "protocol", "ttft_ms", "tpot_ms", "hints"}
    assert told.keys() >= {"moved", "continuation", "seed", "class", "offset"}


def test_id_created_and_model_never_change() -> None:
    out = writer(choices=2)
    raw = out.chunks([Event(0, "a", (1,), 1), Event(1, "b", (2,), 1)])
    raw += out.chunks([Event(i, "", (3,), 1, finish=FinishReason.STOP) for i in (1, 0)])
    same = {(c["id"], c["created"], c["model"], c["object"]) for c in read(raw)}
    assert same == {("chatcmpl-1", 1700, "m", "chat.completion.chunk")}


def test_ids_whose_text_is_held_back_come_with_the_next_chunk() -> None:
    out = writer()
    assert len(read(out.chunks([Event(0, "", (240, 159), 0)]))) == 1  # the role alone
    assert out.chunks([Event(0, "", (152,), 0)]) == b""
    (chunk,) = read(out.chunks([Event(0, "😀", (128,), 4)]))
    assert chunk["firstlight"] == {"offset": 4, "ids": [240, 159, 152, 128]}


def test_text_is_real_utf8() -> None:
    assert "héé\u2028".encode() in writer().chunks([Event(0, "héé\u2028", (1,), 1)])


def test_usage_comes_once_and_only_when_asked() -> None:
    end = Event(0, "x", (1,), 1, finish=FinishReason.STOP)
    out, asked = writer(), writer(usage=True)
    plain = read(out.chunks([end]) + out.end({"total_tokens": 3}))
    assert all("usage" not in chunk and chunk["choices"] for chunk in plain)
    chunks = read(asked.chunks([end]) + asked.end({"total_tokens": 3}))
    assert [chunk["usage"] for chunk in chunks] == [None, None, None, {"total_tokens": 3}]
    assert chunks[-1]["choices"] == []


def test_the_stream_ends_with_done_and_a_blank_line() -> None:
    out = writer()
    out.chunks([Event(0, finish=FinishReason.STOP)])
    assert out.end({}) == b"data: [DONE]\n\n"


def test_a_stream_without_an_ending_is_never_done() -> None:
    out = writer(choices=2)
    out.chunks([Event(0, finish=FinishReason.STOP)])
    with pytest.raises(PeerError, match="no ending for choice 1"):
        out.end({})


def test_nothing_follows_an_ending() -> None:
    out = writer()
    out.chunks([Event(0, finish=FinishReason.STOP)])
    with pytest.raises(PeerError, match="after the ending of choice 0"):
        out.chunks([Event(0, "x", (1,), 1)])


def test_events_ready_together_become_one_a_choice() -> None:
    events = [Event(1, "a", (1,), 1), Event(0, "x", (2,), 1), Event(1, "b", (3,), 2)]
    assert merged(events) == [Event(1, "ab", (1, 3), 2), Event(0, "x", (2,), 1)]


def test_a_keep_alive_is_a_comment_that_ends_no_event() -> None:
    assert KEEP_ALIVE == b":\n"


def test_an_error_ends_a_stream_in_one_event() -> None:
    (event,) = read(error_line(CapacityError("no room")))
    assert event == {
        "error": {"message": "no room", "type": "server_error", "param": None, "code": "overloaded"}
    }


def test_chat_logprobs_carry_bytes_and_alternatives() -> None:
    dialect = Chat(ByteTokenizer().token_bytes, logprobs=True)
    token = TokenText(195, b"\xc3", TokenLogprobs(-0.5, ((195, -0.5), (97, float("-inf")))))
    choice = dialect.piece(0, "é", (token,))
    assert choice["logprobs"] == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -0.5,
                "bytes": [195],
                "top_logprobs": [
                    {"token": "\ufffd", "logprob": -0.5, "bytes": [195]},
                    {"token": "a", "logprob": -9999.0, "bytes": [97]},
                ],
            }
        ],
        "refusal": None,
    }


def test_completion_logprobs_say_where_each_token_begins() -> None:
    dialect = Completions(ByteTokenizer().token_bytes, logprobs=True)
    tokens = [TokenText(0, raw, TokenLogprobs(-1.0)) for raw in (b"ab", b"\xc3", b"\xa9", b"c")]
    first = dialect.piece(0, "abé", tokens[:3])["logprobs"]
    second = dialect.piece(0, "c", tokens[3:])["logprobs"]
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert first["text_offset"] == [0, 2, 2]
    assert second["text_offset"] == [3]
    assert first["token_logprobs"] == [-1.0, -1.0, -1.0]


def test_an_echo_is_the_head_of_a_completion() -> None:
    dialect = Completions(ByteTokenizer().token_bytes, logprobs=False, echoes=("one", "two"))
    first = read(writer(dialect, choices=2).chunks([Event(1, "!", (33,), 1)]))[0]
    assert first["choices"] == [
        {"index": 1, "text": "two", "logprobs": None, "finish_reason": None}
    ]
