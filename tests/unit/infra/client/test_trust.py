"""A server is believed if an authority that we trust says that it is who we asked for, and now."""

import datetime
import os
from pathlib import Path

import pytest
from aioquic.tls import AlertBadCertificate, AlertCertificateExpired
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import Certificate, load_pem_x509_certificates
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID
from edge_tls import TlsFiles, write_tls_files

from firstlight.infra.client import trust
from firstlight.infra.client.trust import trust_in
from firstlight.shared.clock import unix_s
from firstlight.shared.errors import ConfigError

DAY_S = 86_400.0


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return write_tls_files(tmp_path)


def sent(files: TlsFiles) -> tuple[Certificate, list[Certificate]]:
    leaf, *chain = load_pem_x509_certificates(files.cert.read_bytes())
    return leaf, chain


Key = ec.EllipticCurvePrivateKey


def certificate(
    name: str, key: Key, issuer: str, by: Key, *extensions: x509.ExtensionType
) -> Certificate:
    """One that is valid now, signed by `by`."""
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (issuer, name)]
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder(*names, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
    )
    for extension in extensions:
        builder = builder.add_extension(extension, False)
    return builder.sign(by, hashes.SHA256())


def leaf_with(*extensions: x509.ExtensionType) -> Certificate:
    """One that is valid now, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    return certificate("leaf", key, "leaf", key, *extensions)


LOCAL = x509.SubjectAlternativeName([x509.DNSName("localhost")])


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_server_is_believed_by_its_name_or_its_address(files: TlsFiles, name: str) -> None:
    trust_in(files.ca).check(*sent(files), name)


@pytest.mark.parametrize("name", ["local", "example.com", "127.0.0.2", "::1", "", "a b", "*"])
def test_it_is_not_believed_by_another_name(files: TlsFiles, name: str) -> None:
    with pytest.raises(AlertBadCertificate, match="not for"):
        trust_in(files.ca).check(*sent(files), name)


def test_another_authority_does_not_speak_for_it(files: TlsFiles, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write_tls_files(tmp_path / "other")
    for ca_file in (other.ca, None):
        with pytest.raises(AlertBadCertificate):
            trust_in(ca_file).check(*sent(files), "localhost")


def test_an_authority_may_speak_by_way_of_another_that_the_server_sends(tmp_path: Path) -> None:
    root_key, between_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    authority = x509.BasicConstraints(True, None)
    root = certificate("root", root_key, "root", root_key, authority)
    between = certificate("between", between_key, "root", root_key, authority)
    leaf = certificate("leaf", key, "between", between_key, LOCAL)
    ca_file = tmp_path / "root.pem"
    ca_file.write_bytes(root.public_bytes(Encoding.PEM))
    trust_in(ca_file).check(leaf, [between], "localhost")
    with pytest.raises(AlertBadCertificate, match="issuer"):
        trust_in(ca_file).check(leaf, [], "localhost")


def test_a_certificate_of_a_client_is_none_of_a_server(files: TlsFiles) -> None:
    leaf = leaf_with(LOCAL, x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]))
    with pytest.raises(AlertBadCertificate, match="not for a server"):
        trust_in(files.ca).check(leaf, [], "localhost")


@pytest.mark.parametrize("names", [b"\x01\x02", b"\x30\x04\xa3\x02\x05\x00"], ids=["none", "x400"])
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_names_that_cannot_be_read_are_not_the_servers(
    files: TlsFiles, names: bytes, name: str
) -> None:
    leaf = leaf_with(x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, names))
    with pytest.raises(AlertBadCertificate, match="not for"):
        trust_in(files.ca).check(leaf, [], name)


def test_a_certificate_that_says_its_names_twice_is_not_believed(files: TlsFiles) -> None:
    other = x509.UnrecognizedExtension(x509.ObjectIdentifier("2.5.29.97"), b"\x30\x00")
    der = leaf_with(LOCAL, other).public_bytes(Encoding.DER)
    twice = x509.load_der_x509_certificate(der.replace(b"\x55\x1d\x61", b"\x55\x1d\x11"))
    with pytest.raises(AlertBadCertificate, match="not for"):
        trust_in(files.ca).check(twice, [], "localhost")


@pytest.mark.parametrize("by_s", [-DAY_S, 3 * DAY_S], ids=["not yet", "no longer"])
def test_it_is_believed_in_its_time_only(
    files: TlsFiles, by_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "unix_s", lambda: unix_s() + by_s)
    with pytest.raises(AlertCertificateExpired, match="not valid now"):
        trust_in(files.ca).check(*sent(files), "localhost")


def test_it_is_believed_again_in_its_time_and_by_its_name_only(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, later_s = trust_in(files.ca), [0.0]
    monkeypatch.setattr(trust, "unix_s", lambda: unix_s() + later_s[0])
    store.check(*sent(files), "localhost")
    with pytest.raises(AlertBadCertificate, match="not for"):
        store.check(*sent(files), "example.com")
    for later_s[0] in (3 * DAY_S, -DAY_S):
        with pytest.raises(AlertCertificateExpired, match="not valid now"):
            store.check(*sent(files), "localhost")
    later_s[0] = 0.0
    store.check(*sent(files), "localhost")


def test_a_signature_is_followed_once(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    store = trust_in(files.ca)
    store.check(*sent(files), "localhost")
    monkeypatch.setattr(trust.crypto, "X509StoreContext", None)
    store.check(*sent(files), "localhost")


def test_it_is_believed_no_longer_than_its_authority(tmp_path: Path) -> None:
    files = write_tls_files(tmp_path, ca_valid=datetime.timedelta(hours=1))
    leaf, chain = sent(files)
    (authority,) = load_pem_x509_certificates(files.ca.read_bytes())
    _, ends = trust_in(files.ca)._found(leaf, tuple(chain), "localhost")
    assert ends == authority.not_valid_after_utc < leaf.not_valid_after_utc


def test_a_file_is_read_again_when_it_has_changed(files: TlsFiles, tmp_path: Path) -> None:
    before = trust_in(files.ca)
    assert trust_in(files.ca) is before
    (tmp_path / "other").mkdir()
    other = write_tls_files(tmp_path / "other")
    files.ca.write_bytes(other.ca.read_bytes())
    trust_in(files.ca).check(*sent(other), "localhost")


def test_a_file_in_its_place_is_read_that_has_its_time(files: TlsFiles, tmp_path: Path) -> None:
    times = files.ca.stat()
    trust_in(files.ca)
    (tmp_path / "other").mkdir()
    other = write_tls_files(tmp_path / "other")
    os.utime(other.ca, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.ca.replace(files.ca)
    trust_in(files.ca).check(*sent(other), "localhost")


@pytest.mark.parametrize("content", [b"", b"no certificate", b"\xff\x00" * 100])
def test_a_file_without_authorities_is_named(tmp_path: Path, content: bytes) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_bytes(content)
    with pytest.raises(ConfigError, match=r"cannot use the CA file .*bad\.pem"):
        trust_in(bad)
    for missing in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigError, match="cannot use the CA file"):
            trust_in(missing)
