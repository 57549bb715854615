"""Certificates: readable, matching, in time, of the right role and authority. Writes nothing.

Whether files serve is judged by the code that a node itself starts with (`shared.tls`); here is
added what a node does not say until it is too late: that an end is near.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from firstlight.core_node.config import CoreSettings
from firstlight.infra.checks.finding import Finding, Level, bad, ok, warn
from firstlight.infra.checks.subject import NodeSettings, Subject
from firstlight.shared.clock import unix_s
from firstlight.shared.errors import ConfigError
from firstlight.shared.tls import (
    FrontConfig,
    NodeFiles,
    TlsConfig,
    check_files,
    front_files,
    made_files,
    role_host,
    spiffe_uri,
)
from firstlight.shared.types import Role

SOON = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Dates:
    """From when to when a certificate is valid."""

    path: Path
    first: datetime
    last: datetime


def look(subject: Subject) -> list[Finding]:
    """The certificates of every node: towards peers, and towards clients."""
    now = datetime.fromtimestamp(unix_s(), UTC)
    found: dict[str, Finding] = {}  # nodes of one authority find the same of it
    for role, settings in subject.nodes:
        for finding in _node(subject, role, settings, now):
            found.setdefault(finding.name, finding)
    return list(found.values())


def _node(subject: Subject, role: Role, settings: NodeSettings, now: datetime) -> Iterator[Finding]:
    name, tls = f"certificate {role}", settings.tls
    if tls.cert_file and tls.key_file and tls.ca_file:
        yield from judge_given(name, role, settings.node, tls, now)
    elif tls.cert_file or tls.key_file or tls.ca_file:
        do = "set tls.cert_file, tls.key_file and tls.ca_file, or none of them"
        yield bad(name, "some files of tls are named and some are not", do)
    else:
        files = made_files(subject.tls_directory(settings), role, settings.node)
        yield from judge_made(name, files, now)
    if not isinstance(settings, CoreSettings):
        yield from _front(f"front {role}", settings, now)


def judge_given(
    name: str, role: Role, node: str, tls: TlsConfig, now: datetime
) -> Iterator[Finding]:
    """Files that the operator named."""
    if not (tls.cert_file and tls.key_file and tls.ca_file):
        raise ConfigError("judge_given takes a configuration that names all three files")
    files = NodeFiles(tls.cert_file, tls.key_file, tls.ca_file)
    renew = f"issue one that names {spiffe_uri(role, node)} and {role_host(role)}"
    if tls.directory is not None:
        yield bad(name, "tls.directory and tls.cert_file are both set", "remove one of them")
    late = _late(name, files.cert, now, f"{renew}, from {files.ca}")
    if late is None or late.level is Level.WARN:
        try:
            check_files(files, role, node)
        except ConfigError as error:
            late = bad(name, error.message, f"{renew}, from {files.ca}, with its own key")
    yield late or ok(name, f"{spiffe_uri(role, node)}, {_until(files.cert)}")
    yield from _authority(f"authority {role}", files.ca, now, "renew the authority")


def judge_made(name: str, files: NodeFiles, now: datetime) -> Iterator[Finding]:
    """What the development authority made, or will make when the node first starts."""
    directory = files.ca.parent.parent
    if files.ca.exists():
        again = f"end all nodes, then rm -r '{directory}': the next start makes new ones"
        yield from _authority("authority", files.ca, now, again)
    else:
        yield ok("authority", f"{directory}: made when a node first starts")
    if not files.cert.exists():
        yield ok(name, "made when the node first starts")
        return
    try:
        span = dates(files.cert)[0]
    except ConfigError as error:
        yield bad(name, error.message, f"rm '{files.cert}': the next start makes another")
        return
    if now >= span.last:
        yield warn(name, f"{files.cert.name}: ended {span.last:%Y-%m-%d}", "restart the node")
    elif span.first > now:
        yield bad(name, *_early(span))
    else:
        yield ok(name, f"{files.cert.name}: until {span.last:%Y-%m-%d}, renewed by a restart")


def _front(name: str, settings: NodeSettings, now: datetime) -> Iterator[Finding]:
    if isinstance(settings, CoreSettings):
        return
    front: FrontConfig = settings.front
    if front.cert_file and front.key_file:
        do = "issue one for the name that clients use, with its own key"
        finding = _late(name, front.cert_file, now, do)
        try:
            front_files(front, settings.tls, settings.node, (), default_directory=Path())
        except ConfigError as error:
            finding = bad(name, error.message, do)
        yield finding or ok(name, _until(front.cert_file))
    elif front.cert_file or front.key_file or settings.tls.cert_file:
        do = "set front.cert_file and front.key_file, as tls.cert_file and tls.key_file are"
        yield bad(name, "the certificate that clients see is not named", do)


def _authority(name: str, path: Path, now: datetime, do: str) -> Iterator[Finding]:
    yield _late(name, path, now, do) or ok(name, f"{path.name}, {_until(path)}")


def _late(name: str, path: Path, now: datetime, do: str) -> Finding | None:
    """What is wrong with the dates of a file, if it can be read at all; None if nothing is."""
    try:
        return judge_dates(name, dates(path), now, do)
    except ConfigError as error:
        return bad(name, error.message, do)


def judge_dates(name: str, spans: Sequence[Dates], now: datetime, do: str) -> Finding | None:
    """The first certificate of a file that is not valid now, or not for long."""
    for span in spans:
        if now < span.first:
            return bad(name, *_early(span))
        if now >= span.last:
            return bad(name, f"{span.path}: ended {span.last:%Y-%m-%d %H:%M} UTC", do)
    for span in spans:
        if span.last - now < SOON:
            days = (span.last - now).days
            return warn(name, f"{span.path}: ends in {days} days ({span.last:%Y-%m-%d})", do)
    return None


def dates(path: Path) -> list[Dates]:
    """The spans of a PEM file's certificates, in its order; raises `ConfigError`."""
    try:
        certs = x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise ConfigError(f"{path}: not a PEM certificate") from None
    return [Dates(path, cert.not_valid_before_utc, cert.not_valid_after_utc) for cert in certs]


def _early(span: Dates) -> tuple[str, str]:
    seen = f"{span.path}: not valid before {span.first:%Y-%m-%d %H:%M} UTC"
    return seen, "set this machine's clock (is NTP on?), or that of the machine that issued it"


def _until(path: Path) -> str:
    return f"until {min(span.last for span in dates(path)):%Y-%m-%d}"


def paths(subject: Subject) -> list[Path]:
    """Every certificate of the nodes and of their authorities that is there."""
    found: list[Path] = []
    for role, settings in subject.nodes:
        tls = settings.tls
        made = made_files(subject.tls_directory(settings), role, settings.node)
        found += [tls.cert_file or made.cert, tls.ca_file or made.ca]
    return [path for path in dict.fromkeys(found) if path.exists()]
