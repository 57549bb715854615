"""When a link gets padding, and how much: what keeps a long prompt from going out in small pieces.

TCP begins with a window of some ten packets and doubles it each round trip in which it was used up.
A prompt of 128 KB that meets such a window takes three or four round trips to be on its way. So
padding goes first: twice as much each time that the last was answered soon, up to what shall go out
at once. Kernels may let a window fall again when little is sent (the link's pings come too often
for Linux to do so, as far as was seen), so it is looked at now and then whether it still holds,
less and less often if it does.

What comes back late is sent once more at once. If that is quick, the window had fallen, and is
looked at more often from then on; if it is late too, the path carries no more in one flight, and
half of it is enough for as long as the link lives. Sans-IO.
"""

from dataclasses import dataclass

from firstlight.shared.errors import ConfigError

KIB = 1024
SIZE_MIN_BYTES = 16 * KIB
"""About what a new connection sends at once."""
WINDOW_BYTES_MAX = 1024 * KIB
PADDING_BYTES_PER_S_MAX = 16 * KIB * KIB
RTT_MS_MIN = 5.0
"""Nearer cores get no padding: there a cold window costs less than a step."""
LATE_ROUND_TRIPS, LATE_MS = 2.5, 20.0
"""An answer after so many round trips and so much more is late. In one flight it takes little more
than one; a whole window through one that has fallen takes five."""
LOOK_S, LOOK_MIN_S, LOOK_MAX_S = 8.0, 1.0, 60.0
"""Between looks: at first, at least, at most."""


@dataclass(frozen=True, slots=True)
class LinksConfig:
    """How the edge keeps its links to far cores warm. Of each link:"""

    window_bytes: int = 256 * KIB
    """What shall reach a core in one flight; a token of a prompt is up to 3 bytes."""
    padding_bytes_per_s: int = 64 * KIB
    """The budget of padding, which is used up only where the kernel lets windows fall; 0: none."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a value out of its range."""
        for name, least, most in (
            ("window_bytes", SIZE_MIN_BYTES, WINDOW_BYTES_MAX),
            ("padding_bytes_per_s", 0, PADDING_BYTES_PER_S_MAX),
        ):
            if not least <= getattr(self, name) <= most:
                said = f"{name} is {getattr(self, name)}, expected {least} to {most}"
                raise ConfigError(said, param=name)


class Warmth:
    """One link's padding. It asks for one piece of work at a time: `due`, `sent`, `answered`."""

    def __init__(self, config: LinksConfig, now: float) -> None:
        self._rate = config.padding_bytes_per_s
        self._budget_max = 2 * config.window_bytes
        self._budget, self._budget_at = float(self._budget_max), now
        self._enough = config.window_bytes
        self._size = min(SIZE_MIN_BYTES, self._enough)
        self._look_s, self._next_s = LOOK_S, now
        self._late = self._waits = False

    def due(self, rtt_ms: float, now: float) -> int:
        """Bytes of padding to send now, whose arrival is to be answered; 0: none."""
        wanted = self._rate > 0 and not self._waits and rtt_ms >= RTT_MS_MIN
        fits = self._size <= self._left(now)
        return self._size if wanted and fits and now >= self._next_s else 0

    def sent(self, size_bytes: int, now: float) -> None:
        """So much has gone out: all that was due, or less, because something else came."""
        self._budget, self._budget_at = max(0.0, self._left(now) - size_bytes), now
        self._waits = size_bytes >= self._size
        if not self._waits:
            self._next_s = now + LOOK_MIN_S

    def answered(self, took_ms: float, rtt_ms: float, now: float) -> None:
        """All that was due has arrived."""
        self._waits = False
        late_before, self._late = self._late, took_ms > LATE_ROUND_TRIPS * rtt_ms + LATE_MS
        self._next_s = now
        if self._late and not late_before:
            return  # the same once more
        if self._late:
            self._enough = self._size = max(SIZE_MIN_BYTES, self._size // 2)
            self._late, self._look_s = False, LOOK_MAX_S
        elif self._size < self._enough:
            self._size = min(self._enough, 2 * self._size)
            return
        elif late_before:
            self._look_s = max(LOOK_MIN_S, self._look_s / 2)
        else:
            self._look_s = min(LOOK_MAX_S, self._look_s * 2)
        self._next_s = now + self._look_s

    def _left(self, now: float) -> float:
        """What the budget allows: it fills up to two windows, which a first warming takes."""
        return min(self._budget_max, self._budget + (now - self._budget_at) * self._rate)
