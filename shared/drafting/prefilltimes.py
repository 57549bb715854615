"""What prompt tokens add to a step: so much each, and so much for each earlier token they look at.

    added ms = token_ms · tokens + pair_ms · pairs

A token at position p looks at p + 1 tokens, itself included, so a chunk costs more the longer its
prompt is. Both rates are fitted by least squares over measurements that age (weight `_KEPT` a
step). While those lie on one line through the origin, or say that a rate is negative, the ratio of
the two stays what it was.
"""

_KEPT = 0.95
_RATIO = 1 / 2000
"""pair_ms / token_ms before anything is known: at position 2,000 attention costs as much as all the
rest."""
_SEPARATE = 1e-3
"""Measurements tell the two rates apart if the sine² of the angle between them is above this."""
_OUTLIER = 3.0
"""A measurement counts as at most this many times what was expected: the machine was busy."""


def pairs(tokens: int, position: int) -> int:
    """How many tokens a chunk of `tokens` looks at that starts at `position`."""
    return tokens * position + tokens * (tokens + 1) // 2


class PrefillTimes:
    """The two rates, as measured; both 0 until then."""

    def __init__(self, token_ms: float = 0.0, pair_ms: float = 0.0) -> None:
        self.token_ms, self.pair_ms = token_ms, pair_ms
        self._tokens_2 = self._pairs_2 = self._tokens_pairs = 0.0
        self._tokens_ms = self._pairs_ms = 0.0
        self._ms = self._tokens = 0.0

    @property
    def ms_per_token(self) -> float:
        """What a prefill token added lately, at the positions that there were."""
        return self._ms / self._tokens if self._tokens else 0.0

    def observe(self, tokens: int, looked_at: int, ms: float) -> None:
        """`tokens` prompt tokens that looked at `looked_at` tokens added `ms` to a step."""
        if expected := self.ms(tokens, looked_at):
            ms = min(ms, _OUTLIER * expected)
        self._ms = _KEPT * self._ms + ms
        self._tokens = _KEPT * self._tokens + tokens
        self._tokens_2 = _KEPT * self._tokens_2 + tokens * tokens
        self._pairs_2 = _KEPT * self._pairs_2 + looked_at * looked_at
        self._tokens_pairs = _KEPT * self._tokens_pairs + tokens * looked_at
        self._tokens_ms = _KEPT * self._tokens_ms + tokens * ms
        self._pairs_ms = _KEPT * self._pairs_ms + looked_at * ms
        self._fit()

    def ms(self, tokens: int, looked_at: int) -> float:
        """What they are expected to add."""
        return self.token_ms * tokens + self.pair_ms * looked_at

    def tokens(self, ms: float, position: int) -> int:
        """How many tokens from `position` on fit into `ms`; a great many before any measurement."""
        if not self.token_ms:
            return 1 << 30
        # token_ms · n + pair_ms · (n · position + n² / 2) ≤ ms, solved for n
        slope, bend = self.token_ms + self.pair_ms * position, self.pair_ms / 2
        if ms <= 0:
            return 0
        if bend * ms < 1e-9 * slope * slope:
            return int(ms / slope)
        return int(((slope * slope + 4 * bend * ms) ** 0.5 - slope) / (2 * bend))

    def _fit(self) -> None:
        determinant = self._tokens_2 * self._pairs_2 - self._tokens_pairs**2
        if determinant > _SEPARATE * self._tokens_2 * self._pairs_2:
            token_ms = self._tokens_ms * self._pairs_2 - self._pairs_ms * self._tokens_pairs
            pair_ms = self._pairs_ms * self._tokens_2 - self._tokens_ms * self._tokens_pairs
            if token_ms > 0 and pair_ms >= 0:
                self.token_ms, self.pair_ms = token_ms / determinant, pair_ms / determinant
                return
        ratio = self.pair_ms / self.token_ms if self.token_ms else _RATIO
        # One rate left: for units of (tokens + ratio · pairs).
        squares = self._tokens_2 + 2 * ratio * self._tokens_pairs + ratio**2 * self._pairs_2
        self.token_ms = (self._tokens_ms + ratio * self._pairs_ms) / squares
        self.pair_ms = ratio * self.token_ms
