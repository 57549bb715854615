"""One answered stream, as its client saw it. Sans-IO: times come in, milliseconds out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Timing:
    """One answered stream."""

    sent_s: float
    events_s: Sequence[float]
    """Arrival of each event that carried text, in order; at least one."""
    tokens: int
    """Of the answer, as the server counted them."""

    @property
    def ttft_ms(self) -> float:
        """From sending to the first text."""
        return (self.events_s[0] - self.sent_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """Time per token after the first; None below two tokens, or where all came at once."""
        took_s = self.events_s[-1] - self.events_s[0]
        if self.tokens < 2 or took_s <= 0:
            return None
        return took_s * 1e3 / (self.tokens - 1)

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """(begin, end) of each wait between two events, in seconds."""
        return list(pairwise(self.events_s))
