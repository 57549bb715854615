"""Certificates between nodes: who a node is, and a development authority that says so.

A certificate names its node as `spiffe://firstlight/<role>/<node>`, and carries the DNS name
`<role>.firstlight.internal`, which is what a client of a peer checks: so a core cannot pose as a
load balancer, whatever its address. In production the files come from the operator; the development
authority writes them into the state directory at the first start.
"""

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import (
    CertificatePublicKeyTypes,
    PrivateKeyTypes,
    PublicKeyTypes,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from firstlight.shared.clock import unix_s
from firstlight.shared.errors import ConfigError
from firstlight.shared.types import Role

TRUST_DOMAIN = "firstlight"
INTERNAL_DOMAIN = "firstlight.internal"
BACKDATED = timedelta(minutes=5)
CA_VALID = timedelta(days=3650)
LEAF_VALID = timedelta(days=30)
LEAF_REISSUED_BEFORE_END = timedelta(days=10)
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """`directory` (development) or all three files (production); neither: the state directory."""

    directory: Path | None = None
    """Development: the authority and the node's certificate are made here."""
    cert_file: Path | None = None
    """PEM chain, the node's own certificate first."""
    key_file: Path | None = None
    ca_file: Path | None = None
    """PEM certificates that peers are checked against."""


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """The certificate that clients see: both files, or neither in development."""

    cert_file: Path | None = None
    """PEM chain, the server's own certificate first."""
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """PEM files that a node serves and connects with."""

    cert: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True)
class CertAuthority:
    """PEM files of the development authority."""

    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Identity:
    """What a certificate says of its holder."""

    role: Role
    node: str


def role_host(role: Role) -> str:
    """The DNS name that every node of a role carries."""
    return f"{role}.{INTERNAL_DOMAIN}"


def spiffe_uri(role: Role, node: str) -> str:
    """The URI that names a node."""
    return f"spiffe://{TRUST_DOMAIN}/{role}/{node}"


def identity_of(uris: Sequence[str]) -> Identity | None:
    """Who the one URI of our trust domain names; None if there is no such URI, or more than one."""
    ours = [uri for uri in uris if uri.startswith(f"spiffe://{TRUST_DOMAIN}/")]
    if len(ours) != 1:
        return None
    parts = ours[0].removeprefix(f"spiffe://{TRUST_DOMAIN}/").split("/")
    if len(parts) != 2 or parts[0] not in Role.__members__.values():
        return None
    return Identity(Role(parts[0]), parts[1]) if _NODE_NAME.fullmatch(parts[1]) else None


def node_files(
    config: TlsConfig, role: Role, node: str, hosts: Sequence[str], *, default_directory: Path
) -> NodeFiles:
    """The files to use: those configured, checked, or made by the development authority."""
    check_node_name(node)
    given = (config.cert_file, config.key_file, config.ca_file)
    if config.cert_file and config.key_file and config.ca_file:
        if config.directory is not None:
            raise ConfigError("tls: directory and cert_file are both set, expected one of them")
        files = NodeFiles(config.cert_file, config.key_file, config.ca_file)
        check_files(files, role, node)
        return files
    if any(given):
        raise ConfigError("tls: cert_file, key_file and ca_file must be set together")
    directory = config.directory or default_directory
    return issue(ensure_ca(directory), role, node, hosts, directory)


def ensure_ca(directory: Path) -> CertAuthority:
    """The development authority in `directory`, made there if there is none.

    Certificate and key are made in a folder of their own, which is then renamed: so of several
    processes that start at once exactly one makes the authority, and the others use it.
    """
    folder = directory / "ca"
    authority = CertAuthority(folder / "cert.pem", folder / "key.pem")
    try:
        if not folder.exists():
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make_ca(directory, folder)
    except OSError as error:
        raise ConfigError(f"tls: cannot make an authority in {directory}: {error}") from None
    _load_pair(authority.cert, authority.key)
    return authority


def made_files(directory: Path, role: Role, node: str) -> NodeFiles:
    """Where the development authority of `directory` keeps what it makes for a node.

    Whether it has made anything is for the caller to see; nothing is made here.
    """
    return _files_of(f"{role}-{node}", directory, directory / "ca" / "cert.pem")


def front_files(
    config: FrontConfig,
    tls: TlsConfig,
    node: str,
    hosts: Sequence[str],
    *,
    default_directory: Path,
) -> NodeFiles:
    """What a node shows to clients: the configured files, or made by the development authority.

    It is not what the node shows to its peers: a client has no use for the node's URI, and there
    are clients that refuse a certificate with one.
    """
    if config.cert_file and config.key_file:
        _check_match(
            config.cert_file,
            _load_certs(config.cert_file)[0],
            config.key_file,
            _load_key(config.key_file),
        )
        return NodeFiles(config.cert_file, config.key_file, tls.ca_file or config.cert_file)
    if config.cert_file or config.key_file:
        raise ConfigError("front: cert_file and key_file must be set together")
    if tls.cert_file:
        raise ConfigError("front: cert_file is null, but tls.cert_file is not: name both")
    directory = tls.directory or default_directory
    check_node_name(node)
    return _issue(ensure_ca(directory), f"front-{node}", node, _host_names(hosts), directory)


def issue(
    ca: CertAuthority, role: Role, node: str, hosts: Sequence[str], directory: Path
) -> NodeFiles:
    """Files of a node: those in `directory` if they still serve, else a certificate made now."""
    check_node_name(node)
    return _issue(ca, f"{role}-{node}", node, _peer_names(role, node, hosts), directory)


def _files_of(stem: str, directory: Path, ca: Path) -> NodeFiles:
    return NodeFiles(directory / f"{stem}.pem", directory / f"{stem}.key", ca)


def _issue(
    ca: CertAuthority,
    stem: str,
    node: str,
    alternative: Sequence[x509.GeneralName],
    directory: Path,
) -> NodeFiles:
    """The key is made once, and only the certificate is replaced, so that they always match."""
    files = _files_of(stem, directory, ca.cert)
    names = x509.SubjectAlternativeName(alternative)
    ca_cert, ca_key = _load_pair(ca.cert, ca.key)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not files.key.exists():
            _write_once(files.key, _key_pem(ec.generate_private_key(ec.SECP256R1())))
        key = _load_ec_key(files.key)
        if not _still_serves(files.cert, key, ca_cert, names):
            cert = _sign_leaf(key, node, names, ca_cert, ca_key)
            _replace(files.cert, cert.public_bytes(Encoding.PEM))
    except OSError as error:
        raise ConfigError(f"tls: cannot write the files of {stem}: {error}") from None
    return files


def check_files(files: NodeFiles, role: Role, node: str) -> None:
    """Raise `ConfigError` unless the files belong together, are valid and name the node."""
    chain, authorities = _load_certs(files.cert), _load_certs(files.ca)
    cert, key = chain[0], _load_key(files.key)
    _check_match(files.cert, cert, files.key, key)
    _check_dates(files.cert, cert)
    names = _names_of(cert)
    uri, host = spiffe_uri(role, node), role_host(role)
    if names is None or uri not in names.get_values_for_type(x509.UniformResourceIdentifier):
        raise ConfigError(f"{files.cert}: does not name {uri} as a URI")
    if host not in names.get_values_for_type(x509.DNSName):
        raise ConfigError(f"{files.cert}: does not name {host} as a DNS name")
    if not any(_issued_by(link, authority) for link in chain for authority in authorities):
        raise ConfigError(f"{files.cert}: not issued by an authority in {files.ca}")


def check_node_name(node: str) -> None:
    """Raise `ConfigError` unless `node` can stand in a URI and a file's name."""
    if not _NODE_NAME.fullmatch(node):
        raise ConfigError(f"node {node!r}, expected 1 to 63 letters, digits, '.', '_' or '-'")


def _now() -> datetime:
    return datetime.fromtimestamp(unix_s(), UTC)


def _make_ca(directory: Path, folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Firstlight development authority")])
    usage = _key_usage(authority=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    cert = (
        _builder(name, name, key, CA_VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    made = Path(tempfile.mkdtemp(prefix=".ca-", dir=directory))
    try:
        _write_once(made / "key.pem", _key_pem(key))
        _write_once(made / "cert.pem", cert.public_bytes(Encoding.PEM), mode=0o644)
        os.rename(made, folder)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not folder.exists():  # else another process was first
            raise


def _sign_leaf(
    key: ec.EllipticCurvePrivateKey,
    node: str,
    names: x509.SubjectAlternativeName,
    ca_cert: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return (
        _builder(subject, ca_cert.subject, key, LEAF_VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(both, critical=False)
        .add_extension(names, critical=False)
        .add_extension(own, critical=False)
        .add_extension(issuer, critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, valid: timedelta
) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + valid)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _peer_names(role: Role, node: str, hosts: Sequence[str]) -> list[x509.GeneralName]:
    return [
        x509.UniformResourceIdentifier(spiffe_uri(role, node)),
        x509.DNSName(role_host(role)),
        *_host_names(hosts),
    ]


def _host_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in sorted(set(hosts)):
        try:
            names.append(x509.IPAddress(ip_address(host)))
        except ValueError:
            try:
                names.append(x509.DNSName(host))
            except ValueError:
                raise ConfigError(f"tls: host {host!r}, expected a DNS name or an IP") from None
    return names


def _still_serves(
    path: Path,
    key: ec.EllipticCurvePrivateKey,
    ca_cert: x509.Certificate,
    names: x509.SubjectAlternativeName,
) -> bool:
    if not path.exists():
        return False
    cert = _load_certs(path)[0]
    now = _now()
    return (
        cert.not_valid_before_utc <= now
        and now < cert.not_valid_after_utc - LEAF_REISSUED_BEFORE_END
        and _public_bytes(cert.public_key()) == _public_bytes(key.public_key())
        and _issued_by(cert, ca_cert)
        and _names_of(cert) == names
    )


def _issued_by(cert: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        cert.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names_of(cert: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


def _load_pair(
    cert_path: Path, key_path: Path
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    cert, key = _load_certs(cert_path)[0], _load_ec_key(key_path)
    _check_match(cert_path, cert, key_path, key)
    _check_dates(cert_path, cert)
    return cert, key


def _load_certs(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise ConfigError(f"{path}: not a PEM certificate") from None


def _load_key(path: Path) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError):
        raise ConfigError(f"{path}: not an unencrypted PEM private key") from None


def _load_ec_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = _load_key(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: expected an elliptic-curve key")
    return key


def _check_match(
    cert_path: Path, cert: x509.Certificate, key_path: Path, key: PrivateKeyTypes
) -> None:
    if _public_bytes(cert.public_key()) != _public_bytes(key.public_key()):
        raise ConfigError(f"{cert_path}: does not belong to the key in {key_path}")


def _check_dates(path: Path, cert: x509.Certificate) -> None:
    now = _now()
    if now >= cert.not_valid_after_utc:
        raise ConfigError(f"{path}: expired on {cert.not_valid_after_utc:%Y-%m-%d}")
    if now < cert.not_valid_before_utc:
        raise ConfigError(f"{path}: not valid before {cert.not_valid_before_utc:%Y-%m-%d %H:%M}")


def _public_bytes(key: CertificatePublicKeyTypes | PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_temporary(path: Path, content: bytes, mode: int) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def _write_once(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write unless another process did in the meantime; nobody ever sees half a file."""
    temporary = _write_temporary(path, content, mode)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def _replace(path: Path, content: bytes, mode: int = 0o644) -> None:
    os.replace(_write_temporary(path, content, mode), path)
