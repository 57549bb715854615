"""Who asks: bearer keys, known by their SHA-256 alone; and with whom a tenant shares its cache.

The file holds `tenant: <sha256 of the key in hex>` lines; a tenant may have several (to change
keys without a gap), `#` begins a comment. Keys are long random strings, so a plain hash is enough.
Without a file everyone is the tenant `local`, which a node only allows where nobody else can reach
it.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from firstlight.shared.blocks import tenant_salt
from firstlight.shared.errors import AuthError, ConfigError

LOCAL = "local"
KEYS_MAX = 4096
_FILE_BYTES_MAX = 1 << 20
_KEY_BYTES_MAX = 1024
_LINE = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})\s*:\s*[\"']?([0-9a-fA-F]{64})[\"']?\s*(?:#.*)?"
)


class Tenants:
    """Maps an `authorization` header to a tenant's name."""

    def __init__(self, keys: tuple[tuple[bytes, str], ...] | None) -> None:
        """`keys`: (SHA-256 of a key, tenant); None lets everyone in as `local`."""
        self._keys = keys

    @classmethod
    def load(cls, path: Path | None, *, loopback: bool) -> "Tenants":
        """Read the file of hashes. Raises `ConfigError` naming the line that is wrong."""
        if path is None:
            if not loopback:
                raise ConfigError(
                    "no file of tenant keys, but the listener is not on a loopback address: "
                    "name a file, or listen on 127.0.0.1"
                )
            return cls(None)
        try:
            if (size := path.stat().st_size) > _FILE_BYTES_MAX:
                raise ConfigError(f"{path}: {size} bytes, at most {_FILE_BYTES_MAX} expected")
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"tenant keys {path}: {error}") from error
        return cls(_parse(text, str(path)))

    @property
    def open(self) -> bool:
        """Whether no key is asked for."""
        return self._keys is None

    def of(self, authorization: str | None) -> str:
        """The tenant of a request. Raises `AuthError` for no key, or one that nobody has."""
        if self._keys is None:
            return LOCAL
        scheme, _, key = (authorization or "").strip().partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            raise AuthError(
                "no API key: send it as 'Authorization: Bearer KEY'", code="invalid_api_key"
            )
        if len(key) <= _KEY_BYTES_MAX:
            # latin-1: how servers hand over the header's bytes.
            digest = sha256(key.encode("latin-1", "replace")).digest()
            # Every key is compared, so the time says nothing about which one matched.
            matches = [tenant for known, tenant in self._keys if compare_digest(known, digest)]
            if matches:
                return matches[0]
        shown = f"{key[:3]}…" if len(key) >= 12 else "…"
        raise AuthError(f"unknown API key {shown!r}", code="invalid_api_key")


class Salts:
    """Maps a tenant to the secret that its block hashes begin with: its own, or its group's."""

    def __init__(self, salt_key: bytes, groups: Mapping[str, Sequence[str]]) -> None:
        """Raise `ConfigError` if a tenant stands in two groups."""
        self._salt_key = salt_key
        self._group: dict[str, str] = {}
        for group, tenants in groups.items():
            for tenant in tenants:
                if self._group.setdefault(tenant, group) != group:
                    raise ConfigError(
                        f"sharing.groups: {tenant} is in {self._group[tenant]} and in {group}, "
                        "expected one group at most"
                    )

    def of(self, tenant: str) -> bytes:
        """16 bytes."""
        return tenant_salt(self._salt_key, tenant=tenant, group=self._group.get(tenant))


def _parse(text: str, name: str) -> tuple[tuple[bytes, str], ...]:
    keys: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ConfigError(
                f"{name} line {number}: 'tenant: <64 hex digits of the key's SHA-256>' expected"
            )
        tenant, digest = match[1], bytes.fromhex(match[2])
        if keys.setdefault(digest, tenant) != tenant:
            raise ConfigError(f"{name} line {number}: {tenant} has the key of {keys[digest]}")
    if not keys:
        raise ConfigError(f"{name}: no tenant in it, so nobody could ask anything")
    if len(keys) > KEYS_MAX:
        raise ConfigError(f"{name}: {len(keys)} keys, at most {KEYS_MAX} expected")
    return tuple(keys.items())
