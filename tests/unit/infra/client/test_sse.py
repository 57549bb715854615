"""Events and lines are read alike however their bytes are cut, and a line is bounded."""

import pytest

from firstlight.infra.client import sse
from firstlight.infra.client.sse import EVENT_CHARS_MAX, Event, EventReader, LineReader

TEXT = 'data: {"a": "ä€😀"}\n\n: keep-alive\nid: 7\nevent: x\ndata: one\ndata:two\n\ndata: cut'


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_events_do_not_depend_on_how_the_bytes_are_cut(size: int) -> None:
    data = TEXT.encode()
    reader = EventReader()
    events = [e for i in range(0, len(data), size) for e in reader.feed(data[i : i + size])]
    assert events == [Event('{"a": "ä€😀"}'), Event("one\ntwo", "x", "7")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_lines_end_in_each_of_the_three_ways(end: str, size: int) -> None:
    data = f"a{end}{end}b{end}c".encode()
    reader = LineReader()
    lines = [line for i in range(0, len(data), size) for line in reader.feed(data[i : i + size])]
    assert lines == ["a", "", "b"]
    assert reader.end() == ["c"]


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LINE_CHARS_MAX", 10)
    reader = LineReader()
    assert reader.feed(b"x" * 10) == []
    with pytest.raises(ValueError, match="longer than 10"):
        reader.feed(b"x")
    with pytest.raises(ValueError, match="longer than 10"):
        LineReader().feed(b"x" * 11)


def test_only_what_has_no_end_yet_counts_as_a_line_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "LINE_CHARS_MAX", 10)
    reader = LineReader()
    for _ in range(5):
        assert reader.feed(b"x" * 9) == []
        assert reader.feed(b"\ny") == ["x" * 9]
        assert reader.feed(b"\n") == ["y"]
    assert reader.end() == []


def test_an_event_without_end_is_refused() -> None:
    reader = EventReader()
    line = b"data: " + b"x" * (EVENT_CHARS_MAX // 4) + b"\n"
    with pytest.raises(ValueError, match="an event is longer than"):
        reader.feed(5 * line)
