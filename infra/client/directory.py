"""The list of edges as it comes over the wire: checked, and believed only if it is signed rightly.

Sans-IO. `docs/directory.md` says what the list and its signature are. A caller that names public
keys accepts nothing else than lists that one of them signed, for the nonce that was sent; without
keys a list is as trustworthy as the TLS connection that it came over.
"""

import json
import re
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from firstlight.infra.client.edges import EDGES_MAX, RTT_MAX_S, Edge
from firstlight.shared.errors import ConfigError, PeerError

PATH = "/v1/edges"
SIGNATURE_HEADER = "x-firstlight-signature"
BODY_BYTES_MAX = 256 * 1024
EXPIRES_MAX_S = 24 * 3600.0
EXPIRES_S = 60.0
"""Where a list does not say."""
ASKED_EDGES = 16
RTTS_MAX = 16
NAME_CHARS_MAX = 256
_SIGNED = b"firstlight-edges-v1\n"
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,254}}$){_LABEL}(\.{_LABEL})*\.?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Directory:
    """A list that was believed."""

    edges: tuple[Edge, ...]
    """Nearest first, as whoever made it thinks."""
    expires_in_s: float
    signed: bool


class DirectoryKeys:
    """Public keys whose lists are believed. Empty: any list that TLS brings."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        """`keys` in hex, one each; raises `ConfigError` for what is none."""
        self._keys: dict[str, Ed25519PublicKey] = {}
        for text in keys:
            try:
                raw = bytes.fromhex(text)
                self._keys[sha256(raw).hexdigest()[:16]] = Ed25519PublicKey.from_public_bytes(raw)
            except ValueError as error:
                raise ConfigError(
                    f"{text[:80]!r} is no public key of a directory: 64 hex digits expected"
                ) from error

    def __bool__(self) -> bool:
        """Whether a list must be signed."""
        return bool(self._keys)

    def check(self, header: str | None, body: bytes) -> None:
        """Raise `PeerError` unless one of the keys signed this body."""
        parts = (header or "").split()
        if len(parts) != 3 or parts[0] != "ed25519":
            raise PeerError("the list of edges is not signed, and only signed ones are believed")
        key = self._keys.get(parts[1])
        if key is None:
            raise PeerError(
                f"the list of edges is signed by {parts[1][:40]!r}, a key not known here"
            )
        try:
            key.verify(b64decode(parts[2], validate=True), _SIGNED + body)
        except (InvalidSignature, ValueError):
            raise PeerError("the list of edges has a wrong signature: it is not believed") from None


def keys_in(text: str) -> list[str]:
    """The keys in a file of public keys: one a line, in hex."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def path_for(nonce: str, rtts_s: Mapping[str, float]) -> str:
    """What to ask for: `rtts_s` by node is what was measured here, so that it is not guessed."""
    told = [
        f"&rtt={quote(node, safe='')}:{rtt_s * 1e3:.3f}"
        for node, rtt_s in sorted(rtts_s.items(), key=lambda one: one[1])
        if node
    ]
    return f"{PATH}?count={ASKED_EDGES}&nonce={nonce}{''.join(told[:RTTS_MAX])}"


def read_directory(
    body: bytes, header: str | None, *, keys: DirectoryKeys, nonce: str
) -> Directory:
    """The list in an answer. Raises `PeerError` for one that is not believed or cannot be read."""
    if keys:
        keys.check(header, body)
    try:
        fields = json.loads(body)
        listed = fields["data"]
        if not isinstance(listed, list):
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise PeerError(f"what came is no list of edges: {body[:80]!r}") from None
    if keys and fields.get("nonce") != nonce:
        raise PeerError("the list of edges is not the answer to what was asked: its nonce is wrong")
    edges = [edge for entry in listed[:EDGES_MAX] if (edge := _edge(entry)) is not None]
    expires_s = fields.get("expires_in_s")
    if not isinstance(expires_s, int | float) or not 0.0 < expires_s <= EXPIRES_MAX_S:
        expires_s = EXPIRES_S
    return Directory(tuple(edges), float(expires_s), bool(keys))


def _edge(entry: Any) -> Edge | None:
    """One edge of a list; None for what cannot be reached over TLS at an address of its own."""
    if not isinstance(entry, dict):
        return None
    url, alpn, expected_ms = entry.get("url"), entry.get("alpn"), entry.get("expected_rtt_ms")
    if not isinstance(url, str) or not is_server_url(url, ("https",)):
        return None
    expected_s = None
    if isinstance(expected_ms, int | float) and 0.0 <= expected_ms <= RTT_MAX_S * 1e3:
        expected_s = expected_ms / 1e3
    speaks: Sequence[object] = alpn if isinstance(alpn, list) else ("h3",)
    return Edge(
        url.rstrip("/"),
        _name(entry.get("node")),
        _name(entry.get("region")),
        expected_s,
        quic="h3" in speaks,
    )


def _name(value: object) -> str:
    """A name that can be told to others and shown; empty for anything else."""
    if isinstance(value, str) and len(value) <= NAME_CHARS_MAX and value.isprintable():
        return value
    return ""


def is_server_url(url: str, schemes: Sequence[str] = ("https", "http")) -> bool:
    """Whether this is scheme, host and port, and nothing else."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    if not url.isascii() or not url.isprintable() or " " in url:
        return False  # urlsplit drops some characters, and lets others pass
    bare = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)
    return parts.scheme in schemes and _is_host(parts.hostname or "") and bare and port != 0


def _is_host(text: str) -> bool:
    """A name, or an address without a zone."""
    try:
        return "%" not in text and bool(ip_address(text))
    except ValueError:
        return bool(_HOST.fullmatch(text))
