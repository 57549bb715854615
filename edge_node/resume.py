"""What lets a client go on with a stream at any edge: a seal over all that decides its text.

Sans-IO. The seal goes out with the first chunk. Who repeats the request with it, with the seed and
with the ids whose text it has, gets the rest: the ids become the committed beginning of a new
internal request, so edges need to know nothing of each other but one key.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import blake2b
from hmac import compare_digest

from firstlight.edge_node.answer import Ask
from firstlight.edge_node.journal_page import Page, Written, class_hash
from firstlight.shared.errors import NotFoundError, RequestError
from firstlight.shared.types import check_ids

SEAL_BYTES = 16
RESUMED_IDS_MAX = 16_384
"""Of all choices together: they are replayed on the event loop, at about 10 µs an id."""


class Seals:
    """Makes seals with the current key; believes those of the key before it too."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        assert keys
        self._keys = tuple(keys)

    def seal(self, ask: Ask) -> str:
        """The seal of a request, as hex digits."""
        return _mac(self._keys[0], _digest(ask))

    def check(self, seal: str, ask: Ask) -> None:
        """Raise `RequestError` unless `seal` was made for this tenant, request and seed."""
        digest = _digest(ask)
        found = [compare_digest(_mac(key, digest).encode(), seal.encode()) for key in self._keys]
        if not any(found):
            raise RequestError(
                "firstlight.resume.cap does not belong to this request and seed, or is too old",
                param="firstlight.resume.cap",
                code="invalid_resume",
            )

    def pages(self, ask: Ask, streams: Sequence[str]) -> list[tuple[Page, ...]]:
        """Where each stream of a request is journaled: by the current key, and the one before."""
        digest = _digest(ask)
        return [tuple(Page.of(key, digest, stream) for key in self._keys) for stream in streams]


def check_committed(ask: Ask, vocab: int) -> None:
    """Raise `RequestError` unless `ask.committed` can be the beginning of its choices."""
    param, choices = "firstlight.resume.ids", len(ask.prompts) * ask.n
    if len(ask.committed) != choices:
        raise RequestError(
            f"{param} of {len(ask.committed)} choices, expected {choices}", param=param
        )
    total = sum(map(len, ask.committed))
    if total > RESUMED_IDS_MAX:
        raise RequestError(f"{param}: {total} ids, at most {RESUMED_IDS_MAX} expected", param=param)
    for index, ids in enumerate(ask.committed):
        if (wrong := check_ids(ids, vocab)) is not None:
            raise RequestError(
                f"{param}: token id {ids[wrong]} at {wrong}: from 0 to {vocab - 1} expected",
                param=param,
            )
        room = _room(ask, index)
        if len(ids) > room:
            raise RequestError(
                f"{param}: {len(ids)} ids of choice {index}, the context has room for {room}",
                param=param,
            )


def check_offsets(ask: Ask, streams: int, offsets: Sequence[int]) -> None:
    """Raise `RequestError` unless a client can have this many ids of each of its streams."""
    param, choices = "firstlight.resume.offsets", len(ask.prompts) * ask.n
    if (streams, len(offsets)) != (choices, choices):
        raise RequestError(
            f"firstlight.resume: {streams} streams and {len(offsets)} offsets, expected {choices}",
            param=param,
        )
    for index, offset in enumerate(offsets):
        if offset > (room := _room(ask, index)):
            raise RequestError(
                f"{param}: {offset} ids of choice {index}, the context has room for {room}",
                param=param,
            )


def from_journal(
    ask: Ask, written: Sequence[Written], offsets: Sequence[int], numerics_class: str | None
) -> Ask:
    """`ask`, to go on from what was journaled, for a client with this many ids of each choice.

    What the journal lacks is computed again, which gives the same text in the same numerics class
    alone: raises `NotFoundError` if that is not known to be the one that the client names.
    """
    own = class_hash(numerics_class or "")
    for index, (one, offset) in enumerate(zip(written, offsets, strict=True)):
        if len(one.ids) < offset and (numerics_class is None or one.class_hash != own):
            raise NotFoundError(
                f"the journal has {len(one.ids)} of {offset} ids of choice {index}, and they are "
                f"not of class {numerics_class}: send firstlight.resume.ids",
                param="firstlight.resume.class",
                code="resume_unknown",
            )
    same = numerics_class is not None and all(one.class_hash == own for one in written if one.ids)
    return replace(
        ask,
        committed=tuple(one.ids for one in written),
        has=tuple(offsets),
        numerics_class=numerics_class if same else "",
    )


def _room(ask: Ask, index: int) -> int:
    """Ids that choice `index` can have."""
    return ask.context_max - len(ask.prompts[index // ask.n])


def _mac(key: bytes, digest: bytes) -> str:
    return blake2b(digest, key=key, digest_size=SEAL_BYTES).hexdigest()


def _digest(ask: Ask) -> bytes:
    """BLAKE2b-256 over what decides the text; how it is told, and how fast, is left out."""
    decides = [
        ask.tenant,
        ask.model,
        ask.prompts,
        asdict(ask.sampling),
        ask.seed,
        ask.max_tokens,
        ask.n,
        ask.stop,
        ask.ignore_eos,
    ]
    return blake2b(json.dumps(decides, sort_keys=True).encode(), digest_size=32).digest()
