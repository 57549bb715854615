"""The one module that reads the clock. Decisions take `now` as an argument instead."""

import time

_shift_s = 0.0


def monotonic_s() -> float:
    """Seconds on a clock that never goes back. Means nothing on another node."""
    return time.monotonic()


def cpu_s() -> float:
    """Seconds that a CPU has worked for this process, for benchmarks."""
    return time.process_time()


def sleep_s(seconds: float) -> None:
    """Let other threads run for a while. Never on an event loop."""
    time.sleep(seconds)


def unix_s() -> float:
    """Seconds since 1970, for what people and certificates read. May jump."""
    return time.time() + _shift_s


def shift_unix(by_s: float) -> None:
    """From now on `unix_s` is wrong by so much: a laboratory asks for it. 0: right again."""
    global _shift_s
    _shift_s = by_s
