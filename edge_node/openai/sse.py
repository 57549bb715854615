"""An answer as server-sent events: which chunk goes out when, byte for byte.

First the role, last a `finish_reason` with nothing in it; usage only when asked for; `[DONE]`; and
a keep-alive that no client takes for an event. Never an `id:` line: a comment after one makes the
official SDK dispatch an empty event and fail.
"""

from collections.abc import Iterable, Sequence

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
        self, dialect: Dialect, origin: Origin, choices: Sequence[Served], *, include_usage: bool
    ) -> None:
        self._dialect, self._origin, self._choices = dialect, origin, choices
        self._include_usage = include_usage
        self._head = b""
        self._begun: set[int] = set()
        self._running = set(range(len(choices)))
        self._ids: dict[int, list[int]] = {}
        """Ids of a choice that no chunk has told yet: their text is held back."""

    def chunks(self, events: Iterable[Event]) -> bytes:
        """The chunks for events in order, one a choice. May be empty: all text is held back."""
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
            lines.append(self._line([self._dialect.head(index)], served_by(self._origin, served)))
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

    def _line(
        self, choices: list[Object], firstlight: Object | None = None, usage: Object | None = None
    ) -> bytes:
        if not self._head:
            self._head = b"data: " + to_json(self._constant())[:-1]
        parts = [self._head, b',"choices":', to_json(choices)]
        if self._include_usage:
            parts += b',"usage":', to_json(usage)
        if firstlight:
            parts += b',"firstlight":', to_json(firstlight)
        return b"".join([*parts, b"}\n\n"])

    def _constant(self) -> Object:
        """What every chunk of a stream says alike."""
        return {
            "id": self._origin.id,
            "object": self._dialect.chunk_object,
            "created": self._origin.created,
            "model": self._origin.model,
            "system_fingerprint": fingerprint(self._choices[0]),
        }


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
