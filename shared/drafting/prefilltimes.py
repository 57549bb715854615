"""What prompt tokens add to a step: so much each, and so much for each earlier token they look at.

    added ms = token_ms · tokens + pair_ms · pairs

A token at position p looks at p + 1 tokens, itself included, so a chunk costs more the longer its
prompt is. A Kalman filter follows both rates: each may wander a little from step to step, and a
measurement moves them along what it says something about. Chunks that are all alike say only what
the two cost together, and leave how that splits as it was.
"""

_FIRST_TOKENS = 64
"""A chunk before anything is known: enough to learn from, short on any machine."""
_RATIO = 1 / 2000
"""pair_ms / token_ms before anything is known: at position 2,000 attention costs as much as all the
rest."""
_UNSURE = 1.0
"""Standard deviation of a rate of which nothing is known, as a share of it."""
_WANDERS = 0.015
"""The same, of its change from a step to the next."""
_NOISE = 0.2
"""The same, of a measurement."""
_OUTLIER = 2.0
"""A measurement counts as at most this many times what was expected: the machine was busy."""
_LEAST = 0.1
"""A measurement leaves at least this share of a rate."""
_KEPT = 0.95
"""Of the sums behind `ms_per_token`, at each step."""


def pairs(tokens: int, position: int) -> int:
    """How many tokens a chunk of `tokens` looks at that starts at `position`."""
    return tokens * position + tokens * (tokens + 1) // 2


class PrefillTimes:
    """The two rates, as measured; both 0 until then."""

    def __init__(self, token_ms: float = 0.0, pair_ms: float = 0.0) -> None:
        self.token_ms, self.pair_ms = token_ms, pair_ms
        self._token_var = self._pair_var = _UNSURE**2
        self._covar = 0.0
        self._ms = self._tokens = 0.0

    @property
    def ms_per_token(self) -> float:
        """What a prefill token added lately, at the positions that there were."""
        return self._ms / self._tokens if self._tokens else 0.0

    def observe(self, tokens: int, looked_at: int, ms: float) -> None:
        """`tokens` prompt tokens that looked at `looked_at` tokens added `ms` to a step."""
        expected = self.ms(tokens, looked_at)
        if expected:
            ms = min(ms, _OUTLIER * expected)
            self._learn(self.token_ms * tokens / expected, ms / expected - 1)
        else:
            self.token_ms = ms / (tokens + _RATIO * looked_at)
            self.pair_ms = _RATIO * self.token_ms
        self._ms = _KEPT * self._ms + ms
        self._tokens = _KEPT * self._tokens + tokens

    def _learn(self, share: float, surprise: float) -> None:
        """A chunk, of whose expected time the tokens' rate made `share`, took so much more of it.

        All in shares: of the rates, and of what was expected.
        """
        rest = 1 - share
        self._token_var += _WANDERS**2 if self._token_var < _UNSURE**2 else 0.0
        self._pair_var += _WANDERS**2 if self._pair_var < _UNSURE**2 else 0.0
        with_token = share * self._token_var + rest * self._covar
        with_pair = share * self._covar + rest * self._pair_var
        variance = share * with_token + rest * with_pair + _NOISE**2
        self.token_ms *= max(_LEAST, 1 + with_token / variance * surprise)
        self.pair_ms *= max(_LEAST, 1 + with_pair / variance * surprise)
        self._token_var -= with_token**2 / variance
        self._pair_var -= with_pair**2 / variance
        self._covar -= with_token * with_pair / variance

    def ms(self, tokens: int, looked_at: int) -> float:
        """What they are expected to add."""
        return self.token_ms * tokens + self.pair_ms * looked_at

    def tokens(self, ms: float, position: int) -> int:
        """How many tokens from `position` on fit into `ms`."""
        if ms <= 0:
            return 0
        if not self.token_ms:
            return _FIRST_TOKENS
        # token_ms · n + pair_ms · (n · position + n² / 2) ≤ ms, solved for n
        slope, bend = self.token_ms + self.pair_ms * position, self.pair_ms / 2
        if bend * ms < 1e-9 * slope * slope:
            return int(ms / slope)
        return int(((slope * slope + 4 * bend * ms) ** 0.5 - slope) / (2 * bend))
