"""A drafter of a chosen acceptance rate, for laboratories whose cores are timed.

It knows which id a timed core will give, since that is a function of the prefix, and says it with
the probability that it is told; else another id, and after that it goes on from its own wrong
text, as a model would. What it says of a prefix is always the same, so runs repeat. Sans-IO: that
drafting takes `token_ms` an id is for its caller to let pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite
from struct import pack

from firstlight.shared.engine.timed_ids import digest_after, digest_of, id_after, noise_of
from firstlight.shared.errors import ConfigError
from firstlight.shared.types import Request


@dataclass(frozen=True, slots=True)
class OracleConfig:
    """How good a drafter is that foretells a timed core, and how fast."""

    acceptance: float = 0.8
    """Probability of each id to be right, given that those before it were."""
    token_ms: float = 5.0
    """How long an id takes."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for what no drafter can be."""
        if not 0 <= self.acceptance <= 1:
            raise ConfigError(f"an oracle's acceptance is {self.acceptance}, not between 0 and 1")
        if not (self.token_ms > 0 and isfinite(self.token_ms)):
            raise ConfigError(f"an oracle's token_ms is {self.token_ms}, not above 0")


class Oracle:
    """Drafts for one request, id by id, behind a text that can be taken back."""

    def __init__(
        self, acceptance: float, request: Request, answer_ids: Sequence[int], *, name: str
    ) -> None:
        """Oracles of different names err at different places."""
        assert len(answer_ids) > 1, "there has to be a wrong id"
        self._acceptance, self._answer_ids = acceptance, answer_ids
        self._noise = noise_of(request.sampling, request.seed, request.choice)
        self._name = name.encode()
        self._start = len(request.prompt)
        self._digests = [digest_of(request.prompt)]

    @property
    def position(self) -> int:
        """Of the next id."""
        return self._start + len(self._digests) - 1

    def rewind(self, position: int) -> None:
        """Forget all ids from `position` on, which is not inside the prompt."""
        assert self._start <= position <= self.position, (self._start, position, self.position)
        del self._digests[position - self._start + 1 :]

    def append(self, ids: Sequence[int]) -> None:
        """Ids that somebody else chose."""
        for token in ids:
            self._digests.append(digest_after(self._digests[-1], token, self.position))

    def next(self) -> int:
        """Draft one id, and go on behind it."""
        digest = self._digests[-1]
        token = id_after(digest, self._noise, self._answer_ids)
        if self._lot(digest) >= self._acceptance:
            token = self._other(token, digest)
        self.append((token,))
        return token

    def _lot(self, digest: int) -> float:
        """Evenly in [0, 1), and the same whenever this prefix is met."""
        packed = pack("<QQI", digest, *self._noise) + self._name
        return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little") / 2**64

    def _other(self, token: int, digest: int) -> int:
        """An id that is not `token`."""
        first = digest % len(self._answer_ids)
        other = self._answer_ids[first]
        return other if other != token else self._answer_ids[first - 1]
