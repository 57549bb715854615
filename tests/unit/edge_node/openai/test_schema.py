"""What a body may say, and how a wrong one is named."""

import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstlight.edge_node.openai.schema import (
    chat_messages,
    parse_chat,
    parse_completion,
    sampling_of,
)
from firstlight.shared.errors import RequestError
from firstlight.shared.types import Sampling

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
HI = [{"role": "user", "content": "hi"}]


def chat(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": HI} | fields).encode()


def completion(**fields: object) -> bytes:
    return json.dumps({"model": "m", "prompt": "hi"} | fields).encode()


BAD_BOTH: list[tuple[dict[str, object], str]] = [
    ({"model": 5}, "model"),
    ({"model": ""}, "model"),
    ({"n": 0}, "n"),
    ({"n": 9}, "n"),
    ({"n": True}, "n"),
    ({"n": "1"}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 1 << 40}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"logit_bias": []}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"seed": 1 << 63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop.1"),
    ({"stop": ["a", 1]}, "stop.1"),
    ({"stop": list("abcde")}, "stop"),
    ({"stop": "x" * 257}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": False, "stream_options": {}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"firstlight": {"hints": "maybe"}}, "firstlight.hints"),
    ({"firstlight": {"priority": "critical"}}, "firstlight.priority"),
    ({"firstlight": {"ignore_eos": "no"}}, "firstlight.ignore_eos"),
    ({"firstlight": "on"}, "firstlight"),
]
BAD_CHAT: list[tuple[dict[str, object], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": ["hi"]}, "messages.0"),
    ({"messages": [*HI, {"content": "x"}]}, "messages.1.role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content.0.type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
        "messages.0.content.0.text",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages.0.tool_calls"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
    ({"logprobs": 1}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"functions": [{}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"prediction": {}}, "prediction"),
]
BAD_COMPLETION: list[tuple[dict[str, object], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt.0"),
    ({"prompt": [-1]}, "prompt.0"),
    ({"prompt": [1, "a"]}, "prompt.1"),
    ({"prompt": ["a"] * 17}, "prompt"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": True, "logprobs": 1}, "logprobs"),
    ({"echo": "yes"}, "echo"),
    ({"best_of": 2}, "best_of"),
    ({"best_of": True}, "best_of"),
    ({"suffix": "end"}, "suffix"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_BOTH + BAD_CHAT, ids=str)
def test_a_wrong_chat_field_is_named(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat_messages(parse_chat(chat(**fields)))
    assert caught.value.param == param
    assert caught.value.http_status == 400


@pytest.mark.parametrize(("fields", "param"), BAD_BOTH + BAD_COMPLETION, ids=str)
def test_a_wrong_completion_field_is_named(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_completion(completion(**fields))
    assert caught.value.param == param


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_missing_field_is_named(missing: str) -> None:
    body = json.loads(chat())
    del body[missing]
    with pytest.raises(RequestError, match=missing) as caught:
        parse_chat(json.dumps(body).encode())
    assert caught.value.param == missing


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nope",
        b"\xef\xbb\xbf{}",
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b'{"temperature": NaN}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"[]",
        b"null",
        b'"text"',
        b"5",
    ],
    ids=lambda raw: repr(raw[:20]),
)
def test_a_body_that_is_no_json_object_is_an_error(raw: bytes) -> None:
    with pytest.raises(RequestError, match="the body is"):
        parse_chat(raw)


def test_infinity_is_no_temperature() -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat(chat()[:-1] + b', "temperature": 1e999}')
    assert caught.value.param == "temperature"


def test_fields_that_ask_for_nothing_are_accepted() -> None:
    body = parse_chat(
        chat(
            response_format={"type": "text"}, tools=[], tool_choice="none", modalities=["text"],
            functions=None, user="u", metadata={"a": 1}, store=True, unheard_of=[1], stop=[],
            n=None, stream_options=None, service_tier="auto", parallel_tool_calls=True,
        )
    )  # fmt: skip
    assert body.stops == ()
    assert parse_completion(completion(best_of=1, suffix="")).prompts == ["hi"]


def test_absent_sampling_is_the_default() -> None:
    assert sampling_of(parse_chat(chat()), 100) == Sampling(temperature=1.0, top_p=1.0)


def test_sampling_says_what_was_asked() -> None:
    body = parse_chat(
        chat(
            temperature=0, top_p=0.5, top_k=-1, min_p=0.1, repetition_penalty=1.5,
            presence_penalty=-2, frequency_penalty=2, logit_bias={"7": -100, "3": 1.5},
            logprobs=True, top_logprobs=4,
        )
    )  # fmt: skip
    biases = ((3, 1.5), (7, -100.0))
    assert sampling_of(body, 8) == Sampling(0.0, 0.5, 0, 0.1, 1.5, -2.0, 2.0, biases, 4)


@pytest.mark.parametrize("key", ["8", "-1", "x", "", "1.0", "٣", "9" * 5000])
def test_a_bias_on_an_id_outside_the_vocabulary_is_an_error(key: str) -> None:
    with pytest.raises(RequestError, match="from 0 to 7") as caught:
        sampling_of(parse_chat(chat(logit_bias={key: 1})), 8)
    assert caught.value.param == "logit_bias"


def test_messages_become_role_and_text() -> None:
    body = parse_chat(
        chat(
            messages=[
                {"role": "developer", "content": "be brief", "name": "x"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                },
                {"role": "assistant", "content": None, "tool_calls": []},
            ]
        )
    )
    assert chat_messages(body) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]])],
)
def test_a_prompt_comes_in_four_shapes(prompt: object, prompts: object) -> None:
    assert parse_completion(completion(prompt=prompt)).prompts == prompts


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = sorted(
    {field for table in (BAD_BOTH, BAD_CHAT, BAD_COMPLETION) for body, _ in table for field in body}
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5)


@RELAXED
@given(BODIES)
def test_random_json_is_read_or_refused(fields: dict[str, object]) -> None:
    for parse, raw in ((parse_chat, chat(**fields)), (parse_completion, completion(**fields))):
        with contextlib.suppress(RequestError):
            sampling_of(parse(raw), 100)


@RELAXED
@given(st.binary(max_size=60))
def test_random_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(RequestError):
        parse_chat(raw)
