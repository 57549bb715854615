"""Secrets that are files: read, or made once when nobody named one."""

import os
import secrets
from pathlib import Path

from firstlight.shared.errors import ConfigError

KEY_BYTES = 32
FILE_CHARS_MAX = 4096
KEYS_MAX = 2
"""The current key and, while a change is under way, the one before it."""


def read_keys(setting: str, named: Path | None, *, default: Path) -> tuple[bytes, ...]:
    """The keys of a file, a line of hex digits each, the current one first.

    Nodes that must understand each other need the same file. Without a name it is `default`, made
    (0600) by whichever node comes first. `setting` is what errors call it. Raises `ConfigError`
    for a file that holds no key.
    """
    path = named or default
    if named is None:
        _make_once(setting, path)
    try:
        with path.open() as file:
            text = file.read(FILE_CHARS_MAX + 1)
        if len(text) > FILE_CHARS_MAX:
            raise ValueError(f"longer than {FILE_CHARS_MAX} characters")
        keys = tuple(bytes.fromhex(line) for line in text.split())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{setting}: {path}: {error}") from None
    if not 0 < len(keys) <= KEYS_MAX:
        raise ConfigError(f"{setting}: {path}: {len(keys)} keys, expected 1 to {KEYS_MAX}")
    for key in keys:
        if len(key) != KEY_BYTES:
            raise ConfigError(f"{setting}: {path}: {len(key)} bytes, expected {KEY_BYTES}")
    return keys


def _make_once(setting: str, path: Path) -> None:
    """Written aside and linked into place, so that no other process reads half a key."""
    if path.exists():
        return
    aside = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
        os.link(aside, path)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(f"{setting}: cannot make {path}: {error}") from None
    finally:
        aside.unlink(missing_ok=True)
