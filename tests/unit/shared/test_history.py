"""Lines of a history, and their way to a file."""

import errno
import os
from pathlib import Path
from time import sleep

import pytest

from firstlight.shared import history_file
from firstlight.shared.errors import (
    CapacityError,
    ConfigError,
    FirstlightError,
    PeerError,
    RequestError,
)
from firstlight.shared.history import Blame, Line, Waiting, What, decode, encode
from firstlight.shared.history_file import History, history_of, sampling

LINE = Line(3, 1.25, What.SENT, "s", 2, 9, "00ff", {"count": 1, "answer": "ab", "core": None})


@pytest.mark.parametrize("line", [LINE, Line(1, 0.0, What.BEGAN)])
def test_a_line_is_read_back_as_it_was(line: Line) -> None:
    text = encode(line)
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1
    assert decode(text) == line


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"n":1,"t":0,"what":"sang"}',
        b'{"n":"1","t":0,"what":"sent"}',
        b'{"n":1,"t":0,"what":"sent","offset":"2"}',
        encode(LINE)[:-9],
    ],
)
def test_what_is_no_line_is_refused(text: bytes) -> None:
    with pytest.raises(ConfigError, match="no line of a history"):
        decode(text)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [(CapacityError("x"), True), (PeerError("x"), True), (RequestError("quoting"), False)],
)
def test_an_error_is_told_without_its_message(error: FirstlightError, retryable: bool) -> None:
    facts = Blame.of(error).facts
    assert facts["kind"] == error.kind
    assert facts["retryable"] is retryable
    assert "quoting" not in str(facts)


def test_what_does_not_fit_is_counted_and_told() -> None:
    waiting = Waiting(lines_max=2)
    for _ in range(5):
        waiting.add(0.0, What.SENT, "s", None, None, "", {})
    lines = waiting.take(1.0)
    assert [line.number for line in lines] == [1, 2, 6]
    assert (lines[-1].what, lines[-1].facts) == (What.DROPPED, {"count": 3})
    assert waiting.take(2.0) == []


def read(path: Path) -> list[Line]:
    return [decode(text) for text in path.read_bytes().splitlines()]


def test_nothing_is_made_when_no_history_is_asked_for(tmp_path: Path) -> None:
    with history_of(None, "n", "core") as history:
        assert history is None
    assert list(tmp_path.iterdir()) == []


def test_a_process_says_that_it_began_and_that_it_stopped(tmp_path: Path) -> None:
    with history_of(tmp_path / "new", "core/eu", "core") as history:
        assert history is not None
        history.figures = lambda: {"used": 0}
        history.note(What.SENT, "s", epoch=1, offset=2, hash=b"\x01", facts={"count": 2})
    (path,) = (tmp_path / "new").iterdir()
    assert path.name.startswith("core_eu.")
    began, sent, stopped = read(path)
    assert (began.what, began.facts["node"], began.facts["role"]) == (
        What.BEGAN,
        "core/eu",
        "core",
    )
    assert (sent.stream, sent.epoch, sent.offset, sent.hash) == ("s", 1, 2, "01")
    assert (stopped.what, stopped.facts["used"], stopped.number) == (What.STOPPED, 0, 3)
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_ended_a_process_is_named(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    with pytest.raises(PeerError), history_of(path, "n", "core"):
        raise PeerError("the engine failed")
    assert read(path)[-1].facts["failed"] == "PeerError"


def test_a_history_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"history: .*Not a directory"),
        history_of(tmp_path / "file" / "below", "n", "core"),
    ):
        pass


def test_lines_are_on_disk_before_the_process_ends(tmp_path: Path) -> None:
    history = History(tmp_path / "one.jsonl")
    history.note(What.SENT, "s")
    for _ in range(200):
        if history.path.read_bytes():
            break
        sleep(0.01)
    assert [line.what for line in read(history.path)] == [What.SENT]
    history.close()


def test_a_full_disk_costs_lines_which_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_file, "WRITE_EVERY_S", 60.0)
    history = History(tmp_path / "one.jsonl")
    full: list[object] = [True]
    write = os.write

    def write_some(file: int, text: bytes) -> int:
        """A disk with room for ten bytes, until it has room again."""
        if full == ["no room"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        if full:
            full[0] = "no room"
            return write(file, text[:10])
        return write(file, text)

    monkeypatch.setattr(os, "write", write_some)
    for _ in range(3):
        history.note(What.SENT, "s")
    history._write()
    full.clear()
    history.close()
    half, *whole = history.path.read_bytes().splitlines()
    assert len(half) == 10
    lines = [decode(line) for line in whole]
    assert [line.what for line in lines] == [What.STOPPED, What.DROPPED]
    assert lines[1].facts == {"count": 3}
    assert lines[1].number == 5


async def test_samples_say_how_full_a_node_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.setattr(history_file, "SAMPLE_EVERY_S", 0.01)
    with history_of(tmp_path / "one.jsonl", "n", "core") as history:
        async with sampling(history, lambda: {"used": 7}):
            await asyncio.sleep(0.1)
    samples = [line for line in read(tmp_path / "one.jsonl") if line.what is What.SAMPLE]
    assert len(samples) >= 2
    assert {line.facts["used"] for line in samples} == {7}
    assert all(isinstance(line.facts["late_ms"], float) for line in samples)
