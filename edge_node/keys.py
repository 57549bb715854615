"""Secrets of an edge that are files: read, or made once when nobody named one."""

import os
import secrets
from pathlib import Path

from firstlight.shared.errors import ConfigError

SALT_KEY_BYTES = 32


def salt_key(named: Path | None, *, default: Path) -> bytes:
    """The key that tenants' salts are made with, from a file of hex digits.

    Edges that share a prefix cache need the same file. Without a name it is `default`, made (0600)
    by whichever edge comes first. Raises `ConfigError` for a file that holds no key.
    """
    path = named or default
    if named is None:
        _make_once(path)
    try:
        key = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise ConfigError(f"keys.salt_file: {path}: {error}") from None
    if len(key) != SALT_KEY_BYTES:
        raise ConfigError(f"keys.salt_file: {path}: {len(key)} bytes, expected {SALT_KEY_BYTES}")
    return key


def _make_once(path: Path) -> None:
    """Written aside and linked into place, so that no other process reads half a key."""
    if path.exists():
        return
    aside = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(SALT_KEY_BYTES) + "\n")
        os.link(aside, path)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(f"keys.salt_file: cannot make {path}: {error}") from None
    finally:
        aside.unlink(missing_ok=True)
