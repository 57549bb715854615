"""What a stream has told so far, and how the rest is asked for and joined to it.

Sans-IO. Bytes come in, and those go out that end with a whole event: when a connection breaks,
nobody holds half a line. What the events said is looked at only when somebody must know, which is
after a loss, or when much has piled up: the first token costs one search for a blank line.

What comes from the next edge is made to follow: a role is not told twice, nor an ending. (Logprobs
cannot be: an edge tells those of ids whose text it tells.)
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from firstlight.infra.client.ids import IdsTold
from firstlight.infra.client.sse import EventReader
from firstlight.shared.errors import PeerError

EVENT_BYTES_MAX = 4 * 1024 * 1024
"""A longer event is not waited for."""
UNREAD_BYTES_MAX = 64 * 1024
"""Of events that were told on and not yet looked at."""
CHOICES_MAX = 256
_DONE = b"data: [DONE]"


@dataclass(slots=True)
class _Choice:
    told: IdsTold = field(default_factory=IdsTold)
    finished: bool = False


class Transcript:
    """Of one request that streams."""

    def __init__(self, body: bytes) -> None:
        """`body`: the request's."""
        self._body = body
        self._rest = bytearray()
        self._unread = bytearray()
        self._choices: dict[int, _Choice] = _had(body)
        self._seal: dict[str, Any] = {}
        self._looked = self._ended = self._failed = self._usage = False
        self._following = False
        """What comes is the rest, from another edge than what was told before."""

    @property
    def begun(self) -> bool:
        """Whether anything was told on."""
        return bool(self._seal or self._unread or self._failed or self._ended or self._looked)

    def feed(self, data: bytes) -> bytes:
        """The bytes to tell on, now that these came. Raises `PeerError`."""
        known = len(self._rest)
        self._rest += data
        size = _whole(self._rest, known)
        if not size:
            if len(self._rest) > EVENT_BYTES_MAX:
                raise PeerError(f"an event of the stream is longer than {EVENT_BYTES_MAX} bytes")
            return b""
        events = bytes(self._rest[:size])
        del self._rest[:size]
        if self._following:
            return self._lacked(events)
        self._unread += events
        if len(self._unread) > UNREAD_BYTES_MAX:
            self._look()
        return events

    @property
    def tokens(self) -> int:
        """Ids that were told, of all choices. Raises `PeerError`."""
        self._look()
        return sum(len(choice.told.ids) for choice in self._choices.values())

    def complete(self) -> bool:
        """Whether the answer's end, or an error in its place, was told on. Raises `PeerError`."""
        if not self._ended and not self._failed and self._unread.rstrip().endswith(_DONE):
            return True
        self._look()
        return self._ended or self._failed

    def can_resume(self) -> bool:
        """Whether the rest can be asked for. Raises `PeerError` for a stream of something else."""
        self._look()
        return "cap" in self._seal

    def ask_again(self) -> bytes:
        """The body that asks for the rest; what comes from now on is its answer.

        Raises `PeerError` if the stream cannot be gone on with.
        """
        self._rest.clear()
        if not self.begun:
            return self._body
        if not self.can_resume():
            raise PeerError("the stream said nothing that it could be gone on with by")
        request = json.loads(self._body)
        known = [self._choices.get(index, _Choice()) for index in range(_count(request))]
        self._following = True
        for choice in self._choices.values():
            choice.told.rewind()
        extra = request.get("firstlight")
        resume = {**self._seal, "ids": [choice.told.ids for choice in known]}
        request["firstlight"] = {**(extra if isinstance(extra, dict) else {}), "resume": resume}
        return json.dumps(request).encode()

    def _look(self) -> None:
        """Take note of what was told on."""
        events, self._unread = bytes(self._unread), bytearray()
        self._looked = self._looked or bool(events)
        for payload in _payloads(events):
            chunk = self._chunk(payload)
            self._usage = self._usage or bool(chunk.get("usage"))
            for choice in _choices(chunk):
                self._take(chunk, choice)

    def _lacked(self, events: bytes) -> bytes:
        """What of these events the client lacks."""
        told = []
        for payload in _payloads(events):
            if self._ended:
                break
            chunk = self._chunk(payload)
            if chunk and not self._failed:
                payload = self._without_known(chunk)
            if payload:
                told.append(f"data: {payload}\n\n")
        return "".join(told).encode()

    def _without_known(self, chunk: dict[str, Any]) -> str:
        """A chunk without what its client has; empty if nothing is left of it."""
        lacking = []
        for choice in _choices(chunk):
            index = _index(choice)
            known = self._choices.get(index)
            if known is not None and known.finished:
                continue
            if known is not None and isinstance(choice.get("delta"), dict):
                choice["delta"].pop("role", None)
            self._take(chunk, choice)
            lacking.append(choice)
        if chunk.get("choices"):
            if not lacking:
                return ""
            chunk["choices"] = lacking
        elif chunk.get("usage"):
            if self._usage:
                return ""
            self._usage = True
        return json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))

    def _take(self, chunk: dict[str, Any], choice: dict[str, Any]) -> None:
        index = _index(choice)
        if index not in self._choices and len(self._choices) >= CHOICES_MAX:
            raise PeerError(f"the stream has more than {CHOICES_MAX} choices")
        known = self._choices.setdefault(index, _Choice())
        extra = chunk.get("firstlight")
        if isinstance(extra, dict):
            known.told.feed(extra)
            if "cap" in extra:
                self._seal = {name: extra.get(name) for name in ("cap", "seed", "class")}
        known.finished = known.finished or choice.get("finish_reason") is not None

    def _chunk(self, payload: str) -> dict[str, Any]:
        """One payload; empty for the end. Raises `PeerError` for what is no chunk."""
        if payload.strip() == "[DONE]":
            self._ended = True
            return {}
        try:
            chunk = json.loads(payload)
        except (ValueError, RecursionError):
            raise PeerError(f"the stream carried what is not JSON: {payload[:80]!r}") from None
        if not isinstance(chunk, dict):
            raise PeerError(f"the stream carried {chunk!r:.80} where an object was expected")
        self._failed = self._failed or "error" in chunk
        return chunk


_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


def _whole(data: bytearray, known: int) -> int:
    """The size of the whole events at the beginning, with the blank line after the last; none ends
    in what is `known`. An event of many pieces is not searched once for each of them."""
    since = max(0, known - 3)
    found = ((data.rfind(end, since), len(end)) for end in _ENDS)
    return max((at + size for at, size in found if at >= 0), default=0)


def _payloads(events: bytes) -> Iterator[str]:
    try:
        for event in EventReader().feed(events):
            yield event.data
    except ValueError as error:
        raise PeerError(f"the stream cannot be read: {error}") from error


def _choices(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    choices = chunk.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(one, dict) for one in choices):
        raise PeerError(f"choices should be a list of objects, got {choices!r:.80}")
    return choices


def _index(choice: dict[str, Any]) -> int:
    index = choice.get("index", 0)
    if type(index) is not int or index < 0:
        raise PeerError(f"the index of a choice should be a number, got {index!r:.80}")
    return index


def _count(request: dict[str, Any]) -> int:
    """How many choices a request asks for, that an edge has taken as it is."""
    prompt, n = request.get("prompt"), request.get("n")
    several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    return (n if type(n) is int else 1) * (
        len(prompt) if several and isinstance(prompt, list) else 1
    )


def _had(body: bytes) -> dict[int, _Choice]:
    """What a request has that asks for the rest of a stream itself."""
    if b'"resume"' not in body:
        return {}
    try:
        ids = json.loads(body)["firstlight"]["resume"]["ids"]
        lists = ids if not ids or isinstance(ids[0], list) else [ids]
        return {index: _Choice(IdsTold(list(one), len(one))) for index, one in enumerate(lists)}
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}  # the edge says what is wrong with it
