"""Whose certificates a client over QUIC believes.

aioquic reads the authorities from their file again for each connection, between a server's first
packet and the client's answer to it. Here a file is read once as it is, and a connection only looks
whether it is still that one.
"""

import ipaddress
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import certifi
from aioquic.tls import AlertBadCertificate, AlertCertificateExpired
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from OpenSSL import crypto
from service_identity import CertificateError, VerificationError
from service_identity.cryptography import (
    verify_certificate_hostname,
    verify_certificate_ip_address,
)

from firstlight.shared.clock import unix_s
from firstlight.shared.errors import ConfigError

_NOT_FOR_IT = (
    CertificateError,
    VerificationError,
    ValueError,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""Of another name, and of what cannot be read: extensions are read when they are asked for."""
KNOWN_MAX = 64
"""Certificates of servers that were found good, each with the name that it was asked for."""


class Trust:
    """The authorities of one file."""

    def __init__(self, ca_file: Path) -> None:
        """Raises `ConfigError` for a file that holds none."""
        self._store = crypto.X509Store()
        try:
            ssl.create_default_context(cafile=ca_file)  # says in words what is wrong with a file
            self._store.load_locations(str(ca_file))
        except (OSError, ValueError, crypto.Error) as error:
            raise ConfigError(f"cannot use the CA file {ca_file}: {error}") from error
        self._found = lru_cache(maxsize=KNOWN_MAX)(self._find)

    def check(
        self, leaf: x509.Certificate, chain: Sequence[x509.Certificate], server_name: str
    ) -> None:
        """Raise a TLS alert unless the certificate is valid now, is the server's, and is signed by
        an authority, by way of `chain`. The same certificates are the same server's as long as all
        of them are valid, so a signature is followed once, and not for each connection."""
        now = datetime.fromtimestamp(unix_s(), UTC)
        begins, ends = self._found(leaf, tuple(chain), server_name)
        if not begins <= now <= ends:
            self._find(leaf, chain, server_name)

    def _find(
        self, leaf: x509.Certificate, chain: Sequence[x509.Certificate], server_name: str
    ) -> tuple[datetime, datetime]:
        """Between when it can be believed, as it can now. Raises a TLS alert if it cannot."""
        now = datetime.fromtimestamp(unix_s(), UTC)
        if not leaf.not_valid_before_utc <= now <= leaf.not_valid_after_utc:
            raise AlertCertificateExpired("its certificate is not valid now")
        try:
            if not _may_serve(leaf):
                raise AlertBadCertificate("its certificate is not for a server")
            if _is_address(server_name):
                verify_certificate_ip_address(leaf, server_name)
            else:
                verify_certificate_hostname(leaf, server_name)
        except _NOT_FOR_IT as error:
            raise AlertBadCertificate(f"its certificate is not for {server_name}") from error
        between = [crypto.X509.from_cryptography(one) for one in chain]
        context = crypto.X509StoreContext(self._store, crypto.X509.from_cryptography(leaf), between)
        try:
            links = [one.to_cryptography() for one in context.get_verified_chain()]
        except crypto.X509StoreContextError as error:
            raise AlertBadCertificate(str(error.args[0])) from error
        begins = max(one.not_valid_before_utc for one in links)
        return begins, min(one.not_valid_after_utc for one in links)


def trust_in(ca_file: Path | None) -> Trust:
    """The authorities in this file, or those of the web. Raises `ConfigError`."""
    path = Path(certifi.where()) if ca_file is None else ca_file
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot use the CA file {path}: {error}") from error
    # Not by the time of its content, which a copy may keep.
    return _read(path, found.st_ino, found.st_ctime_ns)


@lru_cache(maxsize=16)
def _read(path: Path, inode: int, changed_ns: int) -> Trust:
    del inode, changed_ns
    return Trust(path)


def _may_serve(leaf: x509.Certificate) -> bool:
    """Whether it is a server's: it is if it does not say whose (RFC 5280 section 4.2.1.12)."""
    try:
        usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return ExtendedKeyUsageOID.SERVER_AUTH in usages


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
