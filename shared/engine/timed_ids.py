"""The ids of a core without a model: each a pure function of all before it, and of the draw.

One definition for whoever answers with them (`timed`) and whoever foretells them (`oracle`): a
prefix is a digest, grown id by id, and the id after it is chosen by that digest and by what a
sample depends on beside it. Sans-IO.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from struct import pack

from firstlight.shared.types import Sampling

ROOT = 1
"""The digest before the first token; no digest is 0."""

Noise = tuple[int, int]
"""(seed, choice), or (0, 0) for a draw that depends on neither."""


def digest_after(before: int, token: int, position: int) -> int:
    """The digest after one more id, which stands at `position`."""
    packed = pack("<QII", before, token, position)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little") | 1


def digest_of(ids: Iterable[int]) -> int:
    """The digest after ids that stand at positions from 0 on."""
    digest = ROOT
    for position, token in enumerate(ids):
        digest = digest_after(digest, token, position)
    return digest


def noise_of(sampling: Sampling, seed: int, choice: int) -> Noise:
    """Greedy draws depend on nothing but the prefix; of penalties these ids know nothing."""
    return (0, 0) if sampling.temperature == 0 else (seed, choice)


def id_after(digest: int, noise: Noise, answer_ids: Sequence[int]) -> int:
    """The id after a prefix, one of `answer_ids`."""
    packed = pack("<QQI", digest, *noise)
    chosen = int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")
    return answer_ids[chosen % len(answer_ids)]


def whole_texts(vocab: int, token_bytes: Callable[[int], bytes]) -> list[int]:
    """Ids whose bytes are whole characters that can be printed: a person sees each of them come."""
    texts = ((id_, token_bytes(id_).decode("utf-8", "replace")) for id_ in range(vocab))
    return [id_ for id_, text in texts if text.isprintable() and "\ufffd" not in text and text]
