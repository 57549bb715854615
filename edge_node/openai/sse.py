"""An answer as server-sent events: which chunk goes out when, byte for byte.

First the role, last a `finish_reason` with nothing in it; usage only when asked for; `[DONE]`; and
a keep-alive that no client takes for an event. Never an `id:` line: a comment after one makes the
official SDK dispatch an empty event and fail.
"""

from collections.abc import Iterable, Mapping

from pydantic_core import to_json

from firstlight.edge_node.answer import Event
from firstlight.edge_node.openai.errors import error_body
from firstlight.edge_node.openai.objects import (
    Dialect,
    Object,
    Origin,
    Served,
    fingerprint,
    how_served,
    served_by,
)
from firstlight.shared.errors import FirstlightError, PeerError

KEEP_ALIVE = b":\n"
"""A comment line. Without a blank line, so that it cannot end an event."""
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}
_DONE = b"data: [DONE]\n\n"


class StreamWriter:
    """Events of all choices in, bytes out."""

    def __init__(
        self,
        dialect: Dialect,
        origin: Origin,
        choices: Mapping[int, Served],
        *,
        cap: str,
        include_usage: bool,
    ) -> None:
        """`choices` by index, some or all; `cap`: what a client can go on with elsewhere."""
        self._cap = cap
        self._dialect, self._origin, self._choices = dialect, origin, choices
        self._include_usage = include_usage
        self._begun: set[int] = set()
        self._speaker = next(iter(choices.values()))
        """Whose numerics class names the whole stream's."""
        self._running = set(choices)
        self._ids: dict[int, list[int]] = {}
        """Ids of a choice that no chunk has told yet: their text is held back."""
        # What opens an answer is spelled before its first event, which then has less to wait for.
        self._fingerprint, self._head = self._constant()
        self._first = {index: self._opening(index) for index in choices}

    def chunks(self, events: Iterable[Event]) -> bytes:
        """The chunks for events in order, one a choice. May be empty: all text is held back."""
        if not self._begun and fingerprint(self._speaker) != self._fingerprint:  # it moved
            self._fingerprint, self._head = self._constant()
        return b"".join(self._chunks_of(event) for event in merged(events))

    def end(self, usage: Object) -> bytes:
        """What follows the last event. Raises `PeerError` if a choice has no ending."""
        if self._running:
            raise PeerError(f"the answer broke off: no ending for choice {min(self._running)}")
        last = self._line([], usage=usage) if self._include_usage else b""
        return last + _DONE

    def _chunks_of(self, event: Event) -> bytes:
        index, lines = event.index, []
        served = self._choices[index]
        if index not in self._running:
            raise PeerError(f"an event after the ending of choice {index}")
        if index not in self._begun:
            self._begun.add(index)
            if self._first[index][0] != served_by(self._origin, served):  # it moved
                self._first[index] = self._opening(index)
            lines.append(self._head + self._first[index][1])
        ids = self._ids.setdefault(index, [])
        ids.extend(event.ids)
        if event.text or event.tokens:
            piece = self._dialect.piece(index, event.text, event.tokens)
            lines.append(self._line([piece], {"offset": event.offset, "ids": ids}))
            ids = self._ids[index] = []
        if event.finish is not None:
            self._running.remove(index)
            told = {**how_served(self._origin, served), "offset": event.offset, "ids": ids}
            lines.append(self._line([self._dialect.last(index, event.finish)], told))
        return b"".join(lines)

    def _opening(self, index: int) -> tuple[Object, bytes]:
        """Who serves a choice, and its first line behind the head."""
        told = served_by(self._origin, self._choices[index])
        return told, self._rest([self._dialect.head(index)], {**told, "cap": self._cap})

    def _line(
        self, choices: list[Object], firstlight: Object | None = None, usage: Object | None = None
    ) -> bytes:
        return self._head + self._rest(choices, firstlight, usage)

    def _rest(
        self, choices: list[Object], firstlight: Object | None = None, usage: Object | None = None
    ) -> bytes:
        parts = [b',"choices":', to_json(choices)]
        if self._include_usage:
            parts += b',"usage":', to_json(usage)
        if firstlight:
            parts += b',"firstlight":', to_json(firstlight)
        return b"".join([*parts, b"}\n\n"])

    def _constant(self) -> tuple[str | None, bytes]:
        """The fingerprint, and the head of every line: what they all say alike."""
        name = fingerprint(self._speaker)
        told = {
            "id": self._origin.id,
            "object": self._dialect.chunk_object,
            "created": self._origin.created,
            "model": self._origin.model,
            "system_fingerprint": name,
        }
        return name, b"data: " + to_json(told)[:-1]


def merged(events: Iterable[Event]) -> list[Event]:
    """Events that are ready together, one a choice, in the order in which choices first appear."""
    by_choice: dict[int, Event] = {}
    for event in events:
        before = by_choice.get(event.index)
        if before is not None:
            event = before.merged(event)
        by_choice[event.index] = event
    return list(by_choice.values())


def error_line(error: FirstlightError) -> bytes:
    """The end of a stream that cannot go on. No `[DONE]`: it did not."""
    return b"data: " + error_body(error) + b"\n\n"
