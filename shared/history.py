"""What a node writes down about a run, line by line, for a judge who reads it afterwards. Sans-IO.

    {"n":17,"t":81.204,"what":"committed","stream":"5f…","epoch":1,"offset":9,"hash":"a0…", facts…}

No prompt, no answer and no ids are ever in it: what was committed or sent is told as its length and
the chain hash (`shared.stream`) of all up to there, so that two nodes that speak of the same ids
say the same, and nobody else learns them. `n` counts all that was noted, what could not be written
included: a reader sees from a gap that something is missing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b

from firstlight.shared.errors import CapacityError, ConfigError, FirstlightError, PeerError

VERSION = 1
WAITING_MAX = 65_536
"""Lines that may wait for the writer; beyond it they are counted and not kept."""
LINE_BYTES_MAX = 4096
"""A longer line is no line of ours."""


class What(StrEnum):
    """Everything that a line can say."""

    BEGAN = "began"
    """First line of a process."""
    ACCEPTED = "accepted"
    """Edge: a choice of a request is its to answer."""
    RESUMED = "resumed"
    """Edge: a client that has the first `offset` ids is told the rest. Client: it asks for it."""
    OPENED = "opened"
    """Edge: sent to a core, as an epoch. Core: taken."""
    COMMITTED = "committed"
    """`count` ids more, `offset` in all."""
    FENCED = "fenced"
    """What an epoch that is over still said, or what a newer one ended, was put aside."""
    MOVED = "moved"
    """Edge: it left a core, and goes on elsewhere."""
    LEFT = "left"
    """Edge: it left a core, and does not."""
    SENT = "sent"
    """Edge: the client took `count` ids more, `offset` in all."""
    DELIVERED = "delivered"
    """Edge: the client took the ending."""
    ENDED = "ended"
    """With `finish`, or with the `kind` of an error and whether to try again."""
    CANCELLED = "cancelled"
    POISON = "poison"
    """Edge: called the cause of several cores' death."""
    REFUSED = "refused"
    """Not taken, with the `kind` of the error."""
    ASKED = "asked"
    """Client: a request."""
    RECEIVED = "received"
    """Client: what is here so far, over the answer's ids alone."""
    MEMBER = "member"
    """Load balancer: a node came, went or changed."""
    SAMPLE = "sample"
    """How full everything is."""
    DRAINED = "drained"
    """Core: nothing new was taken any more, `left` were handed over at the limit."""
    DROPPED = "dropped"
    """`count` lines were noted and could not be written."""
    STOPPED = "stopped"
    """Last line of a process that ended by itself; with the last sample."""


Fact = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Line:
    """One event."""

    number: int
    """Of all that the process noted, from 1."""
    t: float
    """Seconds on the process' monotonic clock, rounded to 10 µs."""
    what: What
    stream: str = ""
    """The request, as edge and core call it; of clients, their own name for it."""
    epoch: int | None = None
    offset: int | None = None
    """Ids of the answer up to here."""
    hash: str = ""
    """Hex digits of the chain hash of prompt and answer up to `offset`."""
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Blame:
    """An error as a history tells it: what, whose fault, again or not. Never its message."""

    kind: str
    status: int
    retryable: bool
    code: str | None

    @staticmethod
    def of(error: FirstlightError) -> "Blame":
        """What is told of `error`; `retryable` as edges tell their clients."""
        retryable = isinstance(error, CapacityError | PeerError)
        return Blame(error.kind.value, error.http_status, retryable, error.code)

    @property
    def facts(self) -> dict[str, Fact]:
        """As facts of a line."""
        told: dict[str, Fact] = {"kind": self.kind, "status": self.status}
        told["retryable"] = self.retryable
        if self.code is not None:
            told["code"] = str(self.code)
        return told


class Waiting:
    """Lines on their way to the writer: bounded, numbered, and what does not fit is counted."""

    def __init__(self, lines_max: int = WAITING_MAX) -> None:
        self._lines_max = lines_max
        self._lines: list[Line] = []
        self._noted = 0
        self._unsaid = 0
        """Dropped since a `DROPPED` line said so."""

    def __len__(self) -> int:
        """How many wait."""
        return len(self._lines)

    def add(
        self,
        t: float,
        what: What,
        stream: str,
        epoch: int | None,
        offset: int | None,
        hash: str,
        facts: Mapping[str, Fact],
    ) -> None:
        """Keep one event, or count it as dropped."""
        self._noted += 1
        if len(self._lines) >= self._lines_max:
            self._unsaid += 1
        else:
            self._lines.append(Line(self._noted, t, what, stream, epoch, offset, hash, facts))

    def take(self, t: float) -> list[Line]:
        """All that waits, and how much was dropped since the last call."""
        lines, self._lines = self._lines, []
        if self._unsaid:
            lines.append(self._dropped(t))
        return lines

    def lost(self, lines: int) -> None:
        """The writer could not write so many of what it took."""
        self._unsaid += lines

    def _dropped(self, t: float) -> Line:
        self._noted += 1
        count, self._unsaid = self._unsaid, 0
        return Line(self._noted, t, What.DROPPED, facts={"count": count})


def encode(line: Line) -> bytes:
    """One JSON object and a line feed; what is empty is left out."""
    told: dict[str, Fact] = {"n": line.number, "t": round(line.t, 5), "what": line.what.value}
    if line.stream:
        told["stream"] = line.stream
    if line.epoch is not None:
        told["epoch"] = line.epoch
    if line.offset is not None:
        told["offset"] = line.offset
    if line.hash:
        told["hash"] = line.hash
    return json.dumps(told | dict(line.facts), separators=(",", ":")).encode() + b"\n"


def decode(text: bytes) -> Line:
    """What `encode` made. Raises `ConfigError` for anything else."""
    try:
        fields = json.loads(text.decode())
        number, t, what = fields.pop("n"), fields.pop("t"), What(fields.pop("what"))
        stream, shown = fields.pop("stream", ""), fields.pop("hash", "")
        epoch, offset = fields.pop("epoch", None), fields.pop("offset", None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"no line of a history: {text[:80]!r} ({error})") from None
    whole = type(number) is int and isinstance(stream, str) and isinstance(shown, str)
    whole &= isinstance(t, int | float) and type(epoch) in (int, type(None))
    if not whole or type(offset) not in (int, type(None)):
        raise ConfigError(f"no line of a history: {text[:80]!r}")
    return Line(number, float(t), what, stream, epoch, offset, shown, fields)


def salt_key(salt: bytes) -> str:
    """Tells salts apart without being of use as one."""
    return blake2b(salt, digest_size=8, person=b"history").hexdigest()
