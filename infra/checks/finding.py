"""What a check says: how bad it is, what was seen, and what to do about it. One line each."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from firstlight.infra.checks.subject import Subject

LIMIT_S = 2.0
SEEN_CHARS_MAX = 300


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    """It works, but not as well as it could; or it could not be looked at."""
    BAD = "bad"
    """Something will not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    level: Level
    seen: str
    do: str = ""
    """What to do; empty if nothing is to be done."""

    def __post_init__(self) -> None:
        """Whatever was quoted, it stays one line of bounded length."""
        for field in ("seen", "do"):
            line = " ".join(getattr(self, field).split())
            cut = line if len(line) <= SEEN_CHARS_MAX else line[: SEEN_CHARS_MAX - 1] + "…"
            object.__setattr__(self, field, cut)


@dataclass(frozen=True, slots=True)
class Check:
    """One subject that is looked at by itself, beside the others and within a time of its own."""

    name: str
    look: Callable[[Subject], list[Finding]]
    limit_s: float = LIMIT_S


def ok(name: str, seen: str) -> Finding:
    """All is well."""
    return Finding(name, Level.OK, seen)


def warn(name: str, seen: str, do: str) -> Finding:
    """It works, but something should be done."""
    return Finding(name, Level.WARN, seen, do)


def bad(name: str, seen: str, do: str) -> Finding:
    """It does not work until something is done."""
    return Finding(name, Level.BAD, seen, do)


def unseen(name: str, why: str, do: str = "") -> Finding:
    """It could not be looked at, which is no reason to call it broken."""
    return Finding(name, Level.WARN, f"not looked at, because {why}", do)
