"""What an edge remembers of streams, so that a client can go on with one where it was.

Sans-IO. A request is entered when it begins, and rests when nobody is connected to it: it has
ended, or its client has gone. What rests is forgotten after `keep_s`, or earlier, the oldest first,
when the log is full; what somebody is connected to never is. Where everything is busy, a new
request is not entered, and cannot be gone on with by its id.
"""

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, Protocol, TypeVar

from firstlight.shared.errors import RequestError

KEY_CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    """How much is remembered of streams, and for how long."""

    streams_max: int = 4096
    """Choices, of all requests together."""
    ids_max: int = 1 << 20
    """Ids of prompts and answers together."""
    keep_s: float = 60.0
    """After the end, or after the client has gone."""

    def __post_init__(self) -> None:
        """Check."""
        if self.streams_max < 0 or self.ids_max < 0 or self.keep_s < 0:
            raise ValueError("streams_max, ids_max and keep_s: 0 or more expected")


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What a client named a request, as hashes: the name in its tenant, and what it stands for."""

    name: bytes
    body: bytes

    @classmethod
    def of(cls, tenant: str, path: str, given: str, body: bytes) -> "IdempotencyKey":
        """Raises `RequestError` for a name that is empty, too long or unprintable."""
        if not (0 < len(given) <= KEY_CHARS_MAX and all(" " <= char <= "~" for char in given)):
            raise RequestError(
                f"Idempotency-Key of {len(given)} characters: "
                f"1 to {KEY_CHARS_MAX} printable ASCII characters expected",
                param="Idempotency-Key",
                code="invalid_idempotency_key",
            )
        name = blake2b(digest_size=32, person=b"fl-idempotency")
        for part in (tenant, given):
            name.update(len(part.encode()).to_bytes(4, "little") + part.encode())
        what = blake2b(path.encode() + b"\0", digest_size=32)
        what.update(body)
        return cls(name.digest(), what.digest())


class Entry(Protocol):
    """A request as the log sees it."""

    @property
    def tenant(self) -> str:
        """Whose it is."""
        ...

    @property
    def key(self) -> IdempotencyKey | None:
        """What the client named it."""
        ...

    @property
    def streams(self) -> tuple[str, ...]:
        """An id a choice; none before the request was sent off."""
        ...

    @property
    def choices(self) -> int:
        """How many there will be."""
        ...

    @property
    def ids_kept(self) -> int:
        """Ids that it keeps in memory."""
        ...


T = TypeVar("T", bound=Entry)


class StreamLog(Generic[T]):
    """Requests by the ids of their streams, and by the names that clients gave them."""

    def __init__(self, config: StreamsConfig) -> None:
        self.config = config
        self.streams = self.ids = 0
        """As entered: choices, and ids."""
        self._sizes: dict[T, tuple[int, int]] = {}
        self._resting: OrderedDict[T, float] = OrderedDict()
        """When each is forgotten; the oldest first."""
        self._by_stream: dict[str, tuple[T, int]] = {}
        self._by_key: dict[bytes, T] = {}

    def holds(self, entry: T) -> bool:
        """Whether it was entered, and not forgotten."""
        return entry in self._sizes

    def enter(self, entry: T, now: float) -> bool:
        """A request begins. Returns whether there was room for it."""
        self.sweep(now)
        streams, ids = entry.choices, entry.ids_kept
        streams_max, ids_max = self.config.streams_max - streams, self.config.ids_max - ids
        if streams_max >= 0 and ids_max >= 0:
            self._make_room(streams_max, ids_max)
        if self.streams > streams_max or self.ids > ids_max:
            return False
        self._size(entry, streams, ids)
        if entry.key is not None:
            self._by_key[entry.key.name] = entry
        return True

    def sent_off(self, entry: T) -> None:
        """The ids of its streams are known."""
        if entry in self._sizes:
            self._by_stream |= {stream: (entry, i) for i, stream in enumerate(entry.streams)}

    def wake(self, entry: T) -> None:
        """Somebody is connected to it."""
        self._resting.pop(entry, None)

    def rest(self, entry: T, now: float) -> None:
        """Nobody is connected to it any more."""
        if entry not in self._sizes:
            return
        self._size(entry, entry.choices, entry.ids_kept)
        self._resting[entry] = now + self.config.keep_s
        self._resting.move_to_end(entry)
        self._make_room(self.config.streams_max, self.config.ids_max)
        self.sweep(now)

    def forget(self, entry: T) -> None:
        """As if it had never been."""
        if entry not in self._sizes:
            return
        streams, ids = self._sizes.pop(entry)
        self.streams, self.ids = self.streams - streams, self.ids - ids
        self._resting.pop(entry, None)
        for stream in entry.streams:
            self._by_stream.pop(stream, None)
        if entry.key is not None:
            self._by_key.pop(entry.key.name, None)

    def sweep(self, now: float) -> float | None:
        """Forget what is due; returns when the next is, or None if nothing rests."""
        while self._resting:
            entry, due_s = next(iter(self._resting.items()))
            if due_s > now:
                return due_s
            self.forget(entry)
        return None

    def find(self, tenant: str, stream: str, now: float) -> tuple[T, int] | None:
        """The request of a stream, and which choice it is. None, too, for another tenant's."""
        self.sweep(now)
        found = self._by_stream.get(stream)
        return found if found is not None and found[0].tenant == tenant else None

    def named(self, key: IdempotencyKey, now: float) -> T | None:
        """The request that its tenant gave this name. Raises `RequestError` if it is another."""
        self.sweep(now)
        found = self._by_key.get(key.name)
        if found is not None and found.key != key:
            error = RequestError(
                "this Idempotency-Key was used with another body or path: "
                "the same, byte for byte, or a new key expected",
                param="Idempotency-Key",
                code="idempotency_mismatch",
            )
            error.http_status = 422
            raise error
        return found

    def _size(self, entry: T, streams: int, ids: int) -> None:
        old_streams, old_ids = self._sizes.get(entry, (0, 0))
        self._sizes[entry] = (streams, ids)
        self.streams += streams - old_streams
        self.ids += ids - old_ids

    def _make_room(self, streams_max: int, ids_max: int) -> None:
        while self._resting and (self.streams > streams_max or self.ids > ids_max):
            self.forget(next(iter(self._resting)))
