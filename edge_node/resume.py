"""What lets a client go on with a stream at any edge: a seal over all that decides its text.

Sans-IO. The seal goes out with the first chunk. Who repeats the request with it, with the seed and
with the ids whose text it has, gets the rest: the ids become the committed beginning of a new
internal request, so edges need to know nothing of each other but one key.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import blake2b
from hmac import compare_digest

from firstlight.edge_node.answer import Ask
from firstlight.shared.errors import RequestError
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
        room = ask.context_max - len(ask.prompts[index // ask.n])
        if len(ids) > room:
            raise RequestError(
                f"{param}: {len(ids)} ids of choice {index}, the context has room for {room}",
                param=param,
            )


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
