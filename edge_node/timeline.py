"""What happened to each request on this edge, kept a while for whoever asks why. Sans-IO.

The shells note a tuple for each rare event and nothing for a token; `explain` makes words of it,
when asked. No prompt, no answer and no ids are in it: of a request that was itself wrong not even
the error's message, which may quote it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from firstlight.shared.errors import ConfigError, FirstlightError, RequestError

NOTES_MAX = 512
"""Of one request, enough for 32 choices; what is noted beyond is only counted."""

Note = tuple[float, str, int | None, dict[str, object]]
"""(now, what, choice or None for the whole request, facts)."""


@dataclass(frozen=True, slots=True)
class TimelineLimits:
    """How many requests are remembered, and how long. One takes some 3 KB, and 3 KB a choice."""

    requests_max: int = 2048
    """Beyond this the oldest is forgotten; 0 remembers none."""
    streams_max: int = 4096
    """The same, of all their choices together."""
    keep_s: float = 900.0
    """From a request's first byte."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a limit below 0."""
        for name in ("requests_max", "streams_max", "keep_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, not at least 0")


class Timeline:
    """One request's notes, in the order in which they were made."""

    __slots__ = ("_named", "id", "left_out", "notes", "received_s", "streams", "tenant")

    def __init__(
        self,
        id: str = "",
        tenant: str = "",
        received_s: float = 0.0,
        named: Callable[["Timeline"], None] = lambda timeline: None,
    ) -> None:
        """`named` hears of it when the streams have their names."""
        self.id = id
        """The answer's."""
        self.tenant = tenant
        self.received_s = received_s
        self.streams: tuple[str, ...] = ()
        """One a choice, once it was sent off."""
        self.notes: list[Note] = []
        self.left_out = 0
        self._named = named

    def note(self, what: str, now: float, choice: int | None = None, **facts: object) -> None:
        """Something happened, to one choice or to all."""
        if len(self.notes) < NOTES_MAX:
            self.notes.append((now, what, choice, facts))
        else:
            self.left_out += 1

    def fail(self, error: FirstlightError, now: float, choice: int | None = None) -> None:
        """The request, or one choice of it, ends with an error."""
        self.note("failed" if choice is None else "gave up", now, choice, **words(error))

    def name(self, streams: Sequence[str]) -> None:
        """The choices have stream ids, by which the request can be asked for too."""
        self.streams = tuple(streams)
        self._named(self)


class Timelines:
    """The requests of the last while, by answer id and by stream id."""

    def __init__(self, limits: TimelineLimits | None = None) -> None:
        self.limits = limits or TimelineLimits()
        self._by_id: dict[str, Timeline] = {}
        self._by_stream: dict[str, Timeline] = {}

    def __len__(self) -> int:
        """How many requests are remembered."""
        return len(self._by_id)

    def begin(self, id: str, tenant: str, received_s: float) -> Timeline:
        """A request of `tenant` has come, and its answer's id is made."""
        timeline = Timeline(id, tenant, received_s, self._index)
        self._by_id[id] = timeline
        self._forget(received_s)
        return timeline

    def find(self, id: str, tenant: str, now: float) -> Timeline | None:
        """What is known of an answer or a stream; nothing of another tenant's, or of an old one."""
        self._forget(now)
        found = self._by_id.get(id) or self._by_stream.get(id)
        return found if found is not None and found.tenant == tenant else None

    def _index(self, timeline: Timeline) -> None:
        if timeline.id in self._by_id:
            self._by_stream.update(dict.fromkeys(timeline.streams, timeline))
            self._forget(timeline.received_s)

    def _forget(self, now: float) -> None:
        limits = self.limits
        while self._by_id:
            oldest = next(iter(self._by_id.values()))
            if (
                len(self._by_id) <= limits.requests_max
                and len(self._by_stream) <= limits.streams_max
                and now - oldest.received_s <= limits.keep_s
            ):
                return
            del self._by_id[oldest.id]
            for stream in oldest.streams:
                self._by_stream.pop(stream, None)


def words(error: FirstlightError) -> dict[str, object]:
    """What is kept of an error."""
    return {
        "kind": error.kind.value,
        "status": error.http_status,
        "code": error.code,
        "param": error.param,
        "message": None if isinstance(error, RequestError) else error.message,
    }
