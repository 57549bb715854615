"""Certificates made for the test: good ones, and each way in which one can be wrong."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from firstlight.core_node.config import CoreSettings
from firstlight.edge_node.config import EdgeSettings
from firstlight.infra.checks import certificates
from firstlight.infra.checks.certificates import Dates, judge_dates, judge_given, judge_made
from firstlight.infra.checks.finding import Finding, Level
from firstlight.infra.checks.subject import Subject
from firstlight.shared import tls
from firstlight.shared.tls import FrontConfig, TlsConfig, ensure_ca, issue, made_files
from firstlight.shared.types import Role

DAY = timedelta(days=1)
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def real_now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def given(tmp_path: Path) -> TlsConfig:
    """Files as an operator would name them; the development authority made them."""
    files = issue(ensure_ca(tmp_path), Role.CORE, "core", (), tmp_path)
    return TlsConfig(cert_file=files.cert, key_file=files.key, ca_file=files.ca)


def judged(given: TlsConfig, node: str = "core", role: Role = Role.CORE) -> Finding:
    return next(judge_given("certificate", role, node, given, real_now()))


@pytest.mark.parametrize(
    ("first", "last", "level", "said"),
    [
        (-DAY, 15 * DAY, None, ""),
        (-DAY, 13 * DAY, Level.WARN, "ends in 13 days"),
        (-9 * DAY, timedelta(0), Level.BAD, "ended 2026-06-01"),
        (DAY, 9 * DAY, Level.BAD, "not valid before 2026-06-02"),
    ],
)
def test_dates_are_judged_by_now(
    first: timedelta, last: timedelta, level: Level | None, said: str
) -> None:
    found = judge_dates("c", [Dates(Path("c.pem"), NOW + first, NOW + last)], NOW, "renew")
    assert (found and found.level) == level
    assert said in (found.seen if found else "")


def test_a_chain_is_as_good_as_its_worst_link() -> None:
    good, ended = (NOW - DAY, NOW + 99 * DAY), (NOW - 9 * DAY, NOW - DAY)
    spans = [Dates(Path("c.pem"), *span) for span in (good, ended)]
    found = judge_dates("c", spans, NOW, "renew")
    assert found is not None
    assert found.level is Level.BAD


def test_files_that_belong_together_are_fine(given: TlsConfig) -> None:
    found = judged(given)
    assert found.level is Level.OK
    assert "spiffe://firstlight/core/core" in found.seen


@pytest.mark.parametrize(("node", "role"), [("other", Role.CORE), ("core", Role.EDGE)])
def test_a_certificate_of_another_node_or_role_is_broken(
    given: TlsConfig, node: str, role: Role
) -> None:
    found = judged(given, node, role)
    assert found.level is Level.BAD
    assert f"spiffe://firstlight/{role}/{node}" in found.seen
    assert f"spiffe://firstlight/{role}/{node}" in found.do


def test_a_key_of_another_certificate_is_broken(given: TlsConfig, tmp_path: Path) -> None:
    other = issue(ensure_ca(tmp_path), Role.CORE, "other", (), tmp_path)
    mixed = TlsConfig(cert_file=given.cert_file, key_file=other.key, ca_file=given.ca_file)
    assert "does not belong to the key" in judged(mixed).seen


def test_a_certificate_of_another_authority_is_broken(given: TlsConfig, tmp_path: Path) -> None:
    foreign = ensure_ca(tmp_path / "foreign").cert
    mixed = TlsConfig(cert_file=given.cert_file, key_file=given.key_file, ca_file=foreign)
    assert "not issued by an authority in" in judged(mixed).seen


def test_a_file_that_cannot_be_read_is_named(given: TlsConfig, tmp_path: Path) -> None:
    mixed = TlsConfig(cert_file=tmp_path / "no.pem", key_file=given.key_file, ca_file=given.ca_file)
    found = judged(mixed)
    assert found.level is Level.BAD
    assert "no.pem: No such file" in found.seen


def test_an_expired_certificate_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = ensure_ca(tmp_path)
    monkeypatch.setattr(tls, "LEAF_VALID", timedelta(seconds=-1))
    files = issue(authority, Role.CORE, "core", (), tmp_path)
    found = judged(TlsConfig(cert_file=files.cert, key_file=files.key, ca_file=files.ca))
    assert found.level is Level.BAD
    assert "ended" in found.seen


def test_one_that_ends_soon_still_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "LEAF_VALID", 13 * DAY)
    files = issue(ensure_ca(tmp_path), Role.CORE, "core", (), tmp_path)
    given = TlsConfig(cert_file=files.cert, key_file=files.key, ca_file=files.ca)
    assert judged(given).level is Level.WARN
    assert judged(given, "other").level is Level.BAD


def levels(found: Sequence[Finding]) -> dict[str, Level]:
    return {one.name: one.level for one in found}


def test_what_the_development_authority_has_not_made_yet_is_fine_and_is_not_made(
    tmp_path: Path,
) -> None:
    found = certificates.look(Subject(((Role.EDGE, EdgeSettings()),), tmp_path))
    assert levels(found) == {"authority": Level.OK, "certificate edge": Level.OK}
    assert list(tmp_path.iterdir()) == []


def test_what_the_development_authority_made_is_found(tmp_path: Path) -> None:
    issue(ensure_ca(tmp_path / "tls"), Role.CORE, "core", (), tmp_path / "tls")
    found = certificates.look(Subject(((Role.CORE, CoreSettings()),), tmp_path))
    assert "renewed by a restart" in found[-1].seen
    assert levels(found) == {"authority": Level.OK, "certificate core": Level.OK}


def test_a_made_certificate_that_ended_wants_a_restart_and_an_early_one_a_clock(
    tmp_path: Path,
) -> None:
    issue(ensure_ca(tmp_path), Role.CORE, "core", (), tmp_path)
    files = made_files(tmp_path, Role.CORE, "core")
    *_, later = judge_made("certificate", files, real_now() + 40 * DAY)
    assert (later.level, later.do) == (Level.WARN, "restart the node")
    *_, earlier = judge_made("certificate", files, real_now() - DAY)
    assert earlier.level is Level.BAD
    assert "clock" in earlier.do


def test_half_of_the_files_is_broken(given: TlsConfig, tmp_path: Path) -> None:
    settings = CoreSettings(tls=TlsConfig(cert_file=given.cert_file))
    found = certificates.look(Subject(((Role.CORE, settings),), tmp_path))
    assert levels(found) == {"certificate core": Level.BAD}


def test_an_edge_with_its_own_files_must_name_those_for_clients(
    tmp_path: Path, given: TlsConfig
) -> None:
    files = issue(ensure_ca(tmp_path), Role.EDGE, "edge", (), tmp_path)
    peers = TlsConfig(cert_file=files.cert, key_file=files.key, ca_file=files.ca)
    subject = Subject(((Role.EDGE, EdgeSettings(tls=peers)),), tmp_path)
    assert levels(certificates.look(subject))["front edge"] is Level.BAD
    front = FrontConfig(cert_file=given.cert_file, key_file=given.key_file)
    subject = Subject(((Role.EDGE, EdgeSettings(tls=peers, front=front)),), tmp_path)
    assert levels(certificates.look(subject))["front edge"] is Level.OK
