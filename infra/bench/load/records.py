"""What is known of each request after it, and why some count as misses.

Sans-IO. Nothing is sent twice: whatever a request came to stands here once.
"""

from array import array
from dataclasses import dataclass, field
from enum import StrEnum

from firstlight.infra.bench.timing import Timing

SAID_CHARS_MAX = 200


class Reason(StrEnum):
    """Why a request missed. HTTP statuses that are not here are `http_NNN`."""

    NOT_SENT = "not_sent"
    """As many as `--outstanding-max` were out already."""
    CONNECTION = "connection"
    """No connection, or it broke before the answer began."""
    TIMEOUT = "timeout"
    """Not complete within `--timeout-s`."""
    QUOTA = "refused_429"
    OVERLOADED = "refused_503"
    CUT = "cut"
    """The answer began, and ended before its end."""
    ERROR = "error"
    """The stream carried an error, or what is no chunk."""
    NO_TEXT = "no_text"
    """A complete answer without a single piece of text."""


@dataclass(slots=True)
class Record:
    """One request. Times in seconds of one clock that all records of a run share."""

    index: int
    planned_s: float
    tokens_in: int
    """As planned; a completion's prompt has exactly so many."""
    cold: bool
    """Whether it waited for a connection; of a request without an answer, whether it was to."""
    sent_s: float | None = None
    status: int | None = None
    """Of the HTTP answer, once it began."""
    connected_s: float | None = None
    """When its own connection stood; None if it found one or never had one."""
    events_s: "array[float]" = field(default_factory=lambda: array("d"))
    """When each piece of text came."""
    tokens_out: int = 0
    tokens_in_told: int | None = None
    """Of its prompt, as the server counted."""
    tokens_cached: int | None = None
    """Of its prompt, those that the server says it did not have to compute."""
    ended_s: float | None = None
    """When it was complete, or had missed. None: still out when the run was cut short."""
    miss: str | None = None
    said: str = ""
    """What went wrong, in the words of whoever said so."""

    def missed(self, reason: str, said: str, now: float) -> None:
        """Count it as a miss."""
        self.miss, self.said, self.ended_s = reason, plain(said)[:SAID_CHARS_MAX], now

    @property
    def answered(self) -> bool:
        """Whether it has a complete answer."""
        return self.ended_s is not None and self.miss is None

    @property
    def timing(self) -> Timing:
        """Of an answered one, for figures."""
        assert self.answered
        assert self.sent_s is not None
        return Timing(self.sent_s, self.events_s, self.tokens_out)

    @property
    def e2e_ms(self) -> float:
        """From sending to the end of the stream."""
        assert self.ended_s is not None
        assert self.sent_s is not None
        return (self.ended_s - self.sent_s) * 1e3

    @property
    def slip_ms(self) -> float | None:
        """How much later than planned it was sent; None if it never was."""
        return None if self.sent_s is None else (self.sent_s - self.planned_s) * 1e3


def http_reason(status: int) -> str:
    """The reason that an HTTP status stands for."""
    return f"refused_{status}" if status in (429, 503) else f"http_{status}"


def plain(text: str) -> str:
    """What a server said, on one line and without what a terminal would act on."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
