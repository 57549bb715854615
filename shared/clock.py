"""The one module that reads the clock. Decisions take `now` as an argument instead."""

import time


def monotonic_s() -> float:
    """Seconds on a clock that never goes back. Means nothing on another node."""
    return time.monotonic()


def sleep_s(seconds: float) -> None:
    """Let other threads run for a while. Never on an event loop."""
    time.sleep(seconds)


def unix_s() -> float:
    """Seconds since 1970, for what people and certificates read. May jump."""
    return time.time()
