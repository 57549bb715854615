"""Whether a server is worth asking. Sans-IO.

Open from the start and after any failure: then nobody asks, but for a probe at once or after 1 s,
later ones after up to 10 s. A probe that succeeds closes it. A probe is a call of its own, or the
next one that somebody wants to make.
"""

PROBE_FIRST_S = 1.0
PROBE_MAX_S = 10.0


class Breaker:
    """One server's. `open` says that it is not to be asked."""

    def __init__(self, now: float) -> None:
        self.open = True
        self.probe_at = now
        """When to try again; means nothing while it is closed."""
        self._wait_s = PROBE_FIRST_S
        self._told = False

    def allows(self, now: float) -> bool:
        """Whether to ask now, be it as a probe."""
        return not self.open or now >= self.probe_at

    def failed(self, now: float) -> bool:
        """A call failed. Whether that is news: the first failure since the last success."""
        if not self.open:
            self._wait_s = PROBE_FIRST_S
        elif now < self.probe_at:  # one of several that were on their way when it opened
            return False
        self.open = True
        self.probe_at = now + self._wait_s
        self._wait_s = min(PROBE_MAX_S, 2 * self._wait_s)
        news, self._told = not self._told, True
        return news

    def succeeded(self) -> bool:
        """A call came through. Whether that is news."""
        news, self.open, self._told = self.open, False, False
        return news
