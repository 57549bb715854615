"""Certificates of the mesh: what they name, when they are made anew, and which are refused."""

import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from firstlight.shared import tls
from firstlight.shared.errors import ConfigError
from firstlight.shared.tls import (
    Identity,
    NodeFiles,
    TlsConfig,
    check_files,
    ensure_ca,
    identity_of,
    issue,
    node_files,
)
from firstlight.shared.types import Role


def _issue(directory: Path, node: str = "c1", *hosts: str) -> NodeFiles:
    return issue(ensure_ca(directory), Role.CORE, node, hosts, directory)


def _later(monkeypatch: pytest.MonkeyPatch, delta: timedelta) -> None:
    then = datetime.now(UTC) + delta
    monkeypatch.setattr(tls, "unix_s", then.timestamp)


def test_a_certificate_names_the_node_its_role_and_its_hosts(tmp_path: Path) -> None:
    files = _issue(tmp_path, "c1", "localhost", "127.0.0.1", "::1")
    cert = x509.load_pem_x509_certificate(files.cert.read_bytes())
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    usage = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        "spiffe://firstlight/core/c1"
    ]
    assert names.get_values_for_type(x509.DNSName) == ["core.firstlight.internal", "localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert cert.not_valid_before_utc < datetime.now(UTC) - timedelta(minutes=4)
    check_files(files, Role.CORE, "c1")


def test_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    files = _issue(tmp_path)
    for key in (files.key, ensure_ca(tmp_path).key):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_files_that_still_serve_are_kept(tmp_path: Path) -> None:
    first = _issue(tmp_path).cert.read_bytes()
    assert _issue(tmp_path).cert.read_bytes() == first


def test_new_hosts_get_a_new_certificate_for_the_same_key(tmp_path: Path) -> None:
    first = _issue(tmp_path)
    cert, key = first.cert.read_bytes(), first.key.read_bytes()
    second = _issue(tmp_path, "c1", "other.example")
    assert second.cert.read_bytes() != cert
    assert second.key.read_bytes() == key
    check_files(second, Role.CORE, "c1")


def test_a_certificate_near_its_end_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _issue(tmp_path).cert.read_bytes()
    _later(monkeypatch, timedelta(days=19))
    assert _issue(tmp_path).cert.read_bytes() == first
    _later(monkeypatch, timedelta(days=21))
    assert _issue(tmp_path).cert.read_bytes() != first


_RACE = """
import sys
from pathlib import Path
from firstlight.shared.tls import check_files, ensure_ca, issue
from firstlight.shared.types import Role
directory = Path(sys.argv[1])
sys.stdin.readline()
files = issue(ensure_ca(directory), Role.CORE, "c1", [], directory)
check_files(files, Role.CORE, "c1")
print(hash(files.ca.read_bytes() + files.key.read_bytes()))
"""


def test_processes_that_start_at_once_share_one_authority_and_key(tmp_path: Path) -> None:
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", _RACE, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            text=True,
        )
        for _ in range(4)
    ]
    for process in starts:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    seen = {process.communicate(timeout=30)[0] for process in starts}
    assert [process.returncode for process in starts] == [0, 0, 0, 0]
    assert len(seen) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca", "core-c1.key", "core-c1.pem"]


def test_a_corrupt_file_is_named(tmp_path: Path) -> None:
    files = _issue(tmp_path)
    files.cert.write_text("nonsense")
    with pytest.raises(ConfigError, match=r"core-c1\.pem: not a PEM certificate"):
        _issue(tmp_path)
    files.ca.write_text("nonsense")
    with pytest.raises(ConfigError, match=r"ca/cert\.pem: not a PEM certificate"):
        ensure_ca(tmp_path)


def test_an_expired_authority_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_ca(tmp_path)
    _later(monkeypatch, timedelta(days=3651))
    with pytest.raises(ConfigError, match=r"ca/cert\.pem: expired on"):
        ensure_ca(tmp_path)


def test_files_that_do_not_belong_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = _issue(tmp_path / "a"), _issue(tmp_path / "b")
    with pytest.raises(ConfigError, match="does not belong to the key"):
        check_files(NodeFiles(one.cert, other.key, one.ca), Role.CORE, "c1")
    with pytest.raises(ConfigError, match="not issued by an authority in"):
        check_files(NodeFiles(one.cert, one.key, other.ca), Role.CORE, "c1")
    with pytest.raises(ConfigError, match="does not name spiffe://firstlight/core/c2"):
        check_files(one, Role.CORE, "c2")
    with pytest.raises(ConfigError, match="does not name spiffe://firstlight/lb/c1"):
        check_files(one, Role.LB, "c1")
    _later(monkeypatch, timedelta(days=31))
    with pytest.raises(ConfigError, match="expired on"):
        check_files(one, Role.CORE, "c1")


def test_configured_files_are_used_as_they_are(tmp_path: Path) -> None:
    made = _issue(tmp_path)
    config = TlsConfig(cert_file=made.cert, key_file=made.key, ca_file=made.ca)
    assert node_files(config, Role.CORE, "c1", [], default_directory=tmp_path / "no") == made
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (TlsConfig(cert_file=Path("c.pem")), "must be set together"),
        (TlsConfig(Path("d"), Path("c"), Path("k"), Path("a")), "both set"),
        (TlsConfig(None, Path("c"), Path("k"), Path("a")), "c: No such file"),
    ],
)
def test_half_a_configuration_is_refused(config: TlsConfig, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        node_files(config, Role.CORE, "c1", [], default_directory=tmp_path)


@pytest.mark.parametrize("node", ["", "a/b", "../x", "a b", "-a", "x" * 64, "é"])
def test_a_node_name_that_could_not_stand_in_a_path_is_refused(node: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected 1 to 63"):
        _issue(tmp_path, node)


@pytest.mark.parametrize(
    ("uris", "expected"),
    [
        (["spiffe://firstlight/edge/e-1"], Identity(Role.EDGE, "e-1")),
        (["spiffe://other/edge/x", "spiffe://firstlight/lb/l"], Identity(Role.LB, "l")),
        ([], None),
        (["spiffe://other/edge/e-1"], None),
        (["spiffe://firstlight/queen/e-1"], None),
        (["spiffe://firstlight/edge"], None),
        (["spiffe://firstlight/edge/a/b"], None),
        (["spiffe://firstlight/edge/"], None),
        (["spiffe://firstlight/edge/a", "spiffe://firstlight/core/a"], None),
    ],
)
def test_identities_are_read_strictly(uris: list[str], expected: Identity | None) -> None:
    assert identity_of(uris) == expected
