"""A stream that breaks anywhere, and the rest of it from another edge, read as one that never did.

Both parts are written by what edges write streams with.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from unit.edge_node.openai.script import ByteTokenizer

from firstlight.edge_node.answer import ChoiceStats, Event, TokenText
from firstlight.edge_node.openai.objects import Chat, Completions, Dialect, Origin, Served
from firstlight.edge_node.openai.sse import KEEP_ALIVE, StreamWriter, error_line
from firstlight.infra.client import transcript as transcript_module
from firstlight.infra.client.transcript import Transcript
from firstlight.shared.errors import PeerError
from firstlight.shared.types import FinishReason, TokenLogprobs

TEXTS = {0: "Hello, wörld", 1: "abc"}
"""What each choice says; its ids are its bytes, so that half a character is held back."""
USAGE = {"completion_tokens": 16}
BODY: dict[str, Any] = {"model": "m", "messages": [], "stream": True, "n": 2, "seed": 4}
DIALECTS: list[Dialect] = [
    Chat(ByteTokenizer().token_bytes, logprobs=True),
    Completions(ByteTokenizer().token_bytes, True, ()),
]


def writer(dialect: Dialect, edge: str) -> StreamWriter:
    stats = ChoiceStats(core="core", region="eu", numerics_class="c0")
    served = {index: Served(f"{edge}-{index}", lambda: stats) for index in TEXTS}
    origin = Origin(f"chatcmpl-{edge}", "m", 1700, 4, edge, "eu", "h3")
    return StreamWriter(dialect, origin, served, cap=f"seal-{edge}", include_usage=True)


def token(id: int) -> TokenText:
    return TokenText(id, bytes([id]), TokenLogprobs(-0.5, ()))


def events(has: Sequence[int]) -> list[Event]:
    """Of a stream whose client has so many ids of each choice: an id at a time, in turns."""
    told: list[Event] = []
    raws = {index: text.encode() for index, text in TEXTS.items()}
    for at in range(max(map(len, raws.values()))):
        for index, raw in raws.items():
            if not has[index] <= at < len(raw):
                continue
            whole = raw[: at + 1].decode(errors="ignore").encode()
            before = raw[:at].decode(errors="ignore").encode()
            text = whole[len(before) :].decode() if at >= has[index] else ""
            tokens = tuple(token(id) for id in raw[len(before) : len(whole)])
            told.append(Event(index, text, (raw[at],), len(whole), tokens))
    return told + [Event(i, "", (), len(raw), finish=FinishReason.STOP) for i, raw in raws.items()]


def stream(dialect: Dialect, edge: str, has: Sequence[int] = (0, 0)) -> bytes:
    made = writer(dialect, edge)
    told = b"".join(KEEP_ALIVE + made.chunks([event]) for event in events(has))
    return told + made.end(USAGE)


class Read:
    """What a client makes of a stream, strictly."""

    def __init__(self, raw: bytes) -> None:
        lines = [line for line in raw.decode().split("\n") if line not in ("", ":")]
        assert all(line.startswith("data: ") for line in lines)
        *chunks, last = [line.removeprefix("data: ") for line in lines]
        assert last == "[DONE]"
        self.texts, self.logprobs = dict.fromkeys(TEXTS, ""), dict.fromkeys(TEXTS, 0)
        self.roles, self.ends, self.usages = [], [], 0  # type: ignore[var-annotated]
        for chunk in map(json.loads, chunks):
            self.usages += bool(chunk["usage"])
            for choice in chunk["choices"]:
                self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        index, delta = choice["index"], choice.get("delta") or {}
        assert index not in self.ends
        self.texts[index] += choice.get("text") or delta.get("content") or ""
        self.roles += [index] if "role" in delta else []
        self.ends += [index] if choice["finish_reason"] else []
        lists = [one for one in (choice["logprobs"] or {}).values() if isinstance(one, list)]
        self.logprobs[index] += max(map(len, lists), default=0)


def check(raw: bytes, dialect: Dialect) -> None:
    read = Read(raw)
    assert read.texts == TEXTS
    assert read.logprobs == {index: len(text.encode()) for index, text in TEXTS.items()}
    assert sorted(read.ends) == [0, 1]
    assert read.usages == 1
    assert sorted(read.roles) == ([0, 1] if isinstance(dialect, Chat) else [])


def has_of(body: bytes) -> list[int]:
    resume = json.loads(body)["firstlight"]["resume"]
    assert (resume["seed"], resume["class"]) == (4, "c0")
    for index, ids in enumerate(resume["ids"]):
        assert bytes(ids) == TEXTS[index].encode()[: len(ids)]
    return [len(ids) for ids in resume["ids"]]


@pytest.mark.parametrize("dialect", DIALECTS, ids=["chat", "completions"])
def test_a_stream_that_is_not_broken_is_told_as_it_comes(dialect: Dialect) -> None:
    raw = stream(dialect, "a")
    for size in (1, 7, len(raw)):
        one = Transcript(json.dumps(BODY).encode())
        told = b"".join(one.feed(raw[at : at + size]) for at in range(0, len(raw), size))
        assert told == raw
        assert one.complete()
    check(raw, dialect)


@pytest.mark.parametrize("dialect", DIALECTS, ids=["chat", "completions"])
def test_wherever_a_stream_breaks_the_rest_joins_it(dialect: Dialect) -> None:
    raw = stream(dialect, "a")
    for cut in range(0, len(raw) - 1, 13):
        one = Transcript(json.dumps(BODY).encode())
        told = one.feed(raw[:cut])
        assert not one.complete()
        body = one.ask_again()
        if told:
            told += one.feed(stream(dialect, "b", has_of(body)))
        else:
            assert json.loads(body) == BODY
            told = one.feed(stream(dialect, "b"))
        assert one.complete()
        check(told, dialect)


@pytest.mark.parametrize("dialect", DIALECTS, ids=["chat", "completions"])
def test_a_stream_that_breaks_twice_joins_too(dialect: Dialect) -> None:
    raw = stream(dialect, "a")
    for cut in range(len(raw) // 4, len(raw) - 1, 97):
        one = Transcript(json.dumps(BODY).encode())
        told = one.feed(raw[:cut])
        second = stream(dialect, "b", has_of(one.ask_again()))
        told += one.feed(second[: len(second) // 2])
        third = one.ask_again()
        assert json.loads(third)["firstlight"]["resume"]["cap"] in ("seal-a", "seal-b")
        told += one.feed(stream(dialect, "c", has_of(third)))
        check(told, dialect)


def test_the_rest_is_asked_for_with_what_the_request_said_itself() -> None:
    body = BODY | {"n": 1, "firstlight": {"hints": "off"}}
    one = Transcript(json.dumps(body).encode())
    chunk = {"index": 0, "delta": {"content": "H"}, "finish_reason": None}
    extra = {"cap": "seal", "seed": 4, "class": "c0", "offset": 1, "ids": [72, 195]}
    one.feed(b"data: " + json.dumps({"choices": [chunk], "firstlight": extra}).encode() + b"\n\n")
    resume = {"cap": "seal", "seed": 4, "class": "c0", "ids": [[72]]}
    assert json.loads(one.ask_again()) == body | {"firstlight": {"hints": "off", "resume": resume}}


def test_a_request_that_goes_on_with_a_stream_itself_is_gone_on_with_from_its_own_ids() -> None:
    dialect = DIALECTS[0]
    had = [[72, 101], [97]]
    body = BODY | {"firstlight": {"resume": {"cap": "seal", "seed": 4, "ids": had}}}
    raw = stream(dialect, "a", has=[2, 1])
    one = Transcript(json.dumps(body).encode())
    one.feed(raw[: len(raw) // 2])
    has = has_of(one.ask_again())
    assert has[0] > 2
    assert has[1] >= 1


def test_an_error_in_place_of_the_answer_is_its_end() -> None:
    dialect = DIALECTS[0]
    raw = stream(dialect, "a")[:2000].rpartition(b"\n\n")[0] + b"\n\n"
    one = Transcript(json.dumps(BODY).encode())
    said = raw + error_line(PeerError("gone"))
    assert one.feed(said) == said
    assert one.complete()


def test_an_error_of_the_edge_that_goes_on_is_told() -> None:
    dialect = DIALECTS[0]
    one = Transcript(json.dumps(BODY).encode())
    one.feed(stream(dialect, "a")[:2000])
    one.ask_again()
    line = error_line(PeerError("gone"))
    assert json.loads(one.feed(line)[6:]) == json.loads(line[6:])
    assert one.complete()


def test_what_has_piled_up_is_looked_at_and_the_rest_still_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transcript_module, "UNREAD_BYTES_MAX", 300)
    test_wherever_a_stream_breaks_the_rest_joins_it(DIALECTS[0])


def test_the_end_is_not_told_twice() -> None:
    one = Transcript(json.dumps(BODY).encode())
    raw = stream(DIALECTS[0], "a")
    one.feed(raw[:1500])
    rest = one.feed(stream(DIALECTS[0], "b", has_of(one.ask_again())))
    assert rest.endswith(b"data: [DONE]\n\n")
    assert one.feed(b"data: [DONE]\n\n") == b""


def test_a_stream_that_says_nothing_to_go_on_by_cannot_be_gone_on_with() -> None:
    one = Transcript(json.dumps(BODY).encode())
    one.feed(b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n')
    assert not one.can_resume()
    with pytest.raises(PeerError, match="nothing that it could be gone on with by"):
        one.ask_again()


@pytest.mark.parametrize(
    "line",
    [
        "data: {",
        "data: []",
        'data: {"choices": 7}',
        'data: {"choices": [{"index": -1}]}',
        'data: {"choices": [{"index": "x"}]}',
        'data: {"choices": [{}], "firstlight": {"ids": ["x"]}}',
        'data: {"choices": [{}], "firstlight": {"offset": 5, "ids": [1]}}',
        "data: " + "[" * 100_000,
    ],
)
def test_a_stream_of_something_else_is_an_error_of_the_peer(line: str) -> None:
    one = Transcript(json.dumps(BODY).encode())

    def read() -> None:
        one.feed(line.encode() + b"\n\n")
        one.can_resume()

    with pytest.raises(PeerError):
        read()


def test_an_event_without_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript_module, "EVENT_BYTES_MAX", 100)
    with pytest.raises(PeerError, match="longer than 100 bytes"):
        Transcript(b"{}").feed(b"data: " + b"x" * 200)


def test_more_choices_than_there_can_be_are_an_error() -> None:
    one = Transcript(b"{}")
    many = [{"index": index} for index in range(transcript_module.CHOICES_MAX + 1)]
    one.feed(b"data: " + json.dumps({"choices": many}).encode() + b"\n\n")
    with pytest.raises(PeerError, match="more than 256 choices"):
        one.complete()


@pytest.mark.parametrize("end", ["\r\n\r\n", "\r\r"])
def test_other_line_ends_are_not_held_back(end: str) -> None:
    line = b"data: x" + end.encode()
    assert Transcript(b"{}").feed(line) == line


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({"messages": []}, 1),
        ({"messages": [], "n": 3}, 3),
        ({"prompt": "a", "n": None}, 1),
        ({"prompt": ["a", "b"], "n": 2}, 4),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1], [2, 3]]}, 2),
    ],
)
def test_the_rest_is_asked_for_of_as_many_choices_as_the_whole(
    asked: dict[str, Any], count: int
) -> None:
    one = Transcript(json.dumps(asked).encode())
    chunk = {"choices": [{"index": 0}], "firstlight": {"cap": "s", "offset": 1, "ids": [5]}}
    one.feed(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    ids = json.loads(one.ask_again())["firstlight"]["resume"]["ids"]
    assert ids == [[5]] + [[]] * (count - 1)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_an_event_is_told_on_with_its_last_byte_however_it_is_cut(end: bytes, size: int) -> None:
    event = b'data: {"choices": []}' + end
    transcript, told = Transcript(b"{}"), b""
    for first in range(0, len(event) * 3, size):
        told += transcript.feed((event * 3)[first : first + size])
        assert told == event * ((first + size) // len(event))
