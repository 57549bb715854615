"""One stream in the journal: under which name, and what its bytes mean.

Sans-IO. A page is a row of records, each with its place, the numerics class, ids and a MAC:

    start u32 │ count u32 │ class 8 bytes │ count × id u32 │ MAC 16 bytes        (little endian)

Name and MAC come from the key that edges share, from tenant and request, and from the stream's id.
So who guesses an id, or has one of another request, finds nothing; and what was cut, mixed up or
made up by others is known for what it is, and not used.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct

NAME_PREFIX = "firstlight:journal:"
_HEAD = Struct("<II8s")
_MAC_BYTES = 16


@dataclass(frozen=True, slots=True)
class Written:
    """What a page says."""

    ids: tuple[int, ...]
    class_hash: bytes
    """`class_hash` of the core that committed last."""


@dataclass(frozen=True, slots=True)
class Page:
    """Where a stream is written, and the secret that proves it."""

    name: str
    secret: bytes

    @classmethod
    def of(cls, key: bytes, request: bytes, stream: str) -> "Page":
        """`request`: digest of tenant and request."""
        what = request + stream.encode()
        name = blake2b(what, key=key, digest_size=16, person=b"fl-journal-name")
        secret = blake2b(what, key=key, digest_size=32, person=b"fl-journal-mac")
        return cls(NAME_PREFIX + name.hexdigest(), secret.digest())

    def record(self, start: int, ids: Sequence[int], numerics_class: str) -> bytes:
        """The bytes that say that these ids stand from the `start`-th on."""
        head = _HEAD.pack(start, len(ids), class_hash(numerics_class))
        payload = head + _little(array("I", ids)).tobytes()
        return payload + self._mac(payload)

    def read(self, raw: bytes) -> Written | None:
        """The ids of all records; None if any of it is not right, or the beginning is missing."""
        ids: list[int] = []
        at, of_class = 0, b""
        while at < len(raw):
            if len(raw) - at < _HEAD.size:
                return None
            start, count, of_class = _HEAD.unpack_from(raw, at)
            end = at + _HEAD.size + 4 * count
            mac = raw[end : end + _MAC_BYTES]
            if start > len(ids) or not compare_digest(mac, self._mac(raw[at:end])):
                return None
            ids[start:] = _little(array("I", raw[at + _HEAD.size : end]))
            at = end + _MAC_BYTES
        return Written(tuple(ids), of_class) if raw else None

    def _mac(self, payload: bytes) -> bytes:
        return blake2b(payload, key=self.secret, digest_size=_MAC_BYTES).digest()


def class_hash(numerics_class: str) -> bytes:
    """8 bytes for a class' name, of any length."""
    return blake2b(numerics_class.encode(), digest_size=8).digest()


def _little(words: "array[int]") -> "array[int]":
    assert words.itemsize == 4
    if sys.byteorder == "big":
        words.byteswap()
    return words
