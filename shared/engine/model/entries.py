"""Entries of a mapping that came from outside, each checked for type and range as it is read."""

from collections.abc import Mapping
from pathlib import Path

from firstlight.shared.errors import ConfigError

SIZE_MAX = 1 << 24


class Entries:
    """A JSON object or GGUF metadata. What it raises names the file and the key."""

    def __init__(self, path: Path, raw: Mapping[str, object], within: str = "") -> None:
        """`within` is the key of an object inside of the file."""
        self.path = path
        self.raw = raw
        self._within = within + "." if within else ""

    def wrong(self, key: str, expected: str) -> ConfigError:
        """The error of an entry that is not what it must be."""
        value = repr(self.raw.get(key))[:100]
        return ConfigError(f"{self.path}: {self._within}{key} is {value}, expected {expected}")

    def text(self, key: str, default: str | None = None) -> str:
        """A string, cut at 64 characters."""
        value = self.raw.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "text")
        return value[:64]

    def size(self, key: str, default: int | None = None, most: int = SIZE_MAX) -> int:
        """A number of things, at least one."""
        value = self.raw.get(key)
        if value is None:
            value = default
        if type(value) is not int or not 0 < value <= most:
            raise self.wrong(key, f"1…{most}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.raw.get(key)
        if value is None:
            value = default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self.raw.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
            raise self.wrong(key, "a positive number")
        return float(value)

    def ids(self, *keys: str) -> tuple[int, ...]:
        """Token ids, one or several under each key, without repetitions."""
        found: list[int] = []
        for key in keys:
            value = self.raw.get(key)
            for item in value if isinstance(value, list) else [value]:
                if item is None:
                    continue
                if type(item) is not int or item < 0:
                    raise self.wrong(key, "token ids")
                found.append(item)
        return tuple(dict.fromkeys(found))

    def inner(self, *keys: str) -> "Entries":
        """The object under the first of these keys that has one; empty if none has."""
        for key in keys:
            value = self.raw.get(key)
            if value is None or value == {}:
                continue
            if not isinstance(value, dict):
                raise self.wrong(key, "an object")
            return Entries(self.path, value, self._within + key)
        return Entries(self.path, {}, self._within + keys[0])
