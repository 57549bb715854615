"""Server-sent events out of bytes, without IO.

A line or a character may be cut anywhere by the transport, so both wait for their end. Comments
(keep-alives) are dropped; an event without its blank line was not finished and is not given out.
"""

import codecs
from dataclasses import dataclass

LINE_CHARS_MAX = EVENT_CHARS_MAX = 4 * 1024 * 1024


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    data: str
    name: str = "message"
    id: str = ""


class LineReader:
    """Text lines out of chunks of UTF-8. LF, CRLF and CR end a line."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun: list[str] = []
        """Pieces of the line that has no end yet, joined once: it may come a byte at a time."""
        self._chars = 0
        self._after_cr = False

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now, without their ends."""
        text = self._decoder.decode(data)
        if self._after_cr and text:
            text = text.removeprefix("\n")
            self._after_cr = False
        self._after_cr = self._after_cr or text.endswith("\r")
        *ended, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        lines = ["".join((*self._begun, ended[0])), *ended[1:]] if ended else []
        if lines:
            self._begun.clear()
            self._chars = 0
        if rest:
            self._begun.append(rest)
            self._chars += len(rest)
        if self._chars > LINE_CHARS_MAX:
            raise ValueError(f"a line is longer than {LINE_CHARS_MAX} characters")
        return lines

    def end(self) -> list[str]:
        """The last line, when the stream ended without a line end."""
        rest = "".join((*self._begun, self._decoder.decode(b"", final=True)))
        self._begun.clear()
        return [rest] if rest else []


class EventReader:
    """Events out of chunks of a `text/event-stream`."""

    def __init__(self) -> None:
        self._lines = LineReader()
        self._data: list[str] = []
        self._chars = 0
        self._name = ""
        self._id = ""

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete now. Raises `ValueError` for one without end."""
        events = []
        for line in self._lines.feed(data):
            if not line:
                if self._data:
                    events.append(Event("\n".join(self._data), self._name or "message", self._id))
                self._data, self._name, self._chars = [], "", 0
                continue
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                self._data.append(value)
                self._chars += len(value) + 1
                if self._chars > EVENT_CHARS_MAX:
                    raise ValueError(f"an event is longer than {EVENT_CHARS_MAX} characters")
            elif field == "event":
                self._name = value
            elif field == "id" and "\0" not in value:
                self._id = value
        return events
