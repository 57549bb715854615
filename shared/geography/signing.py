"""Lists that anyone can pass on and nobody can change: Ed25519 over a list's bytes.

    x-firstlight-signature: ed25519 KEY_ID BASE64

The private key is 32 bytes in a file that all edges and load balancers have, made like the other
keys (`shared/keys.py`); the public one stands beside the certificate authority's certificate.
"""

import base64
import binascii
import hmac
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from firstlight.shared.errors import ConfigError
from firstlight.shared.keys import FILE_CHARS_MAX, KEY_BYTES, read_keys

HEADER = "x-firstlight-signature"
ALGORITHM = "ed25519"
EDGES = b"firstlight-edges-v1\n"
"""What goes before the bytes of a list of edges."""
STEERING = b"firstlight-steer-v1\n"
"""What goes before the table that DNS answers from."""
ID_CHARS = 16
PUBLIC_NAME = "directory.pub"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that lists can be checked with."""

    id: str
    raw: bytes


class Signer:
    """The current private key, and the public keys of all in the file."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        private = [Ed25519PrivateKey.from_private_bytes(key) for key in keys]
        self._private = private[0]
        self._token = _token_of(keys[0])
        self.public = tuple(public_key(one.public_key().public_bytes_raw()) for one in private)

    @property
    def token(self) -> str:
        """What nodes with this key show each other to see more than clients may."""
        return self._token

    def knows(self, token: str) -> bool:
        """Whether it is the token of this key."""
        return hmac.compare_digest(token.encode(), self._token.encode())

    def header(self, purpose: bytes, body: bytes) -> str:
        """The value of `HEADER` for this body."""
        signature = base64.b64encode(self._private.sign(purpose + body)).decode()
        return f"{ALGORITHM} {self.public[0].id} {signature}"


def _token_of(key: bytes) -> str:
    """A token that tells nothing of the key."""
    return hmac.digest(key, STEERING, "sha256").hex()


def public_key(raw: bytes) -> PublicKey:
    """A public key with its id."""
    return PublicKey(sha256(raw).hexdigest()[:ID_CHARS], raw)


def is_signed(header: str, purpose: bytes, body: bytes, keys: Sequence[PublicKey]) -> bool:
    """Whether one of these keys signed this body for this purpose."""
    algorithm, _, rest = header.partition(" ")
    name, _, text = rest.partition(" ")
    if algorithm != ALGORITHM:
        return False
    for key in keys:
        if key.id == name:
            try:
                signature = base64.b64decode(text, validate=True)
                Ed25519PublicKey.from_public_bytes(key.raw).verify(signature, purpose + body)
            except (InvalidSignature, binascii.Error, ValueError):
                return False
            return True
    return False


def load_signer(named: Path | None, tls_directory: Path) -> Signer:
    """The signer of a node. If nobody named the file, its public keys are put beside the authority.

    To be called when the authority is there.
    """
    keys = read_keys("keys.directory_file", named, default=tls_directory / "directory.key")
    signer = Signer(keys)
    folder = tls_directory / "ca"
    if named is None and folder.is_dir():
        _publish(signer, folder / PUBLIC_NAME)
    return signer


def _publish(signer: Signer, path: Path) -> None:
    """Whole or not at all, and only if it says something else."""
    text = "".join(f"{key.raw.hex()}\n" for key in signer.public)
    aside = path.with_name(f".{PUBLIC_NAME}-{secrets.token_hex(8)}")
    try:
        if path.exists() and path.read_text() == text:
            return
        aside.write_text(text)
        os.replace(aside, path)
    except OSError as error:
        raise ConfigError(f"keys.directory_file: cannot write {path}: {error}") from None
    finally:
        aside.unlink(missing_ok=True)


def read_public_keys(path: Path) -> tuple[PublicKey, ...]:
    """The keys of a `directory.pub`. Raises `ConfigError` for a file that holds none."""
    try:
        with path.open() as file:
            lines = file.read(FILE_CHARS_MAX).split()
        raws = [bytes.fromhex(line) for line in lines]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not raws or any(len(raw) != KEY_BYTES for raw in raws):
        raise ConfigError(f"{path}: expected lines of {2 * KEY_BYTES} hex digits")
    return tuple(public_key(raw) for raw in raws)
