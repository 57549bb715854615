"""Databases: loaded, refused, replaced, missing. Whatever a file holds, nothing crashes."""

import logging
from ipaddress import ip_address
from pathlib import Path

import pytest
from mmdb_bed import BUILT_UNIX_S, LONDON, TOKYO, flat, nested, write_database

from firstlight.shared.errors import ConfigError
from firstlight.shared.geography.geoip import DATABASES_MAX, Database, Geoip
from firstlight.shared.routing.geo import Place

DATA = Path(__file__).parents[5] / "shared" / "data" / "geoip"
BAD = sorted(path.name for path in (DATA / "bad").glob("*.mmdb"))
IN_LONDON, IN_TOKYO = ip_address("81.2.69.142"), ip_address("2001:db8:2::1")


def loaded(directory: Path) -> Geoip:
    geoip = Geoip(directory)
    geoip.refresh()
    return geoip


def test_addresses_of_both_versions_have_their_place(tmp_path: Path) -> None:
    write_database(tmp_path / "a.mmdb")
    geoip = loaded(tmp_path)
    found = geoip.find(IN_LONDON)
    assert found is not None
    assert (found.place, str(found.network)) == (Place(51.51, -0.09, "GB"), "81.2.69.0/24")
    other = geoip.find(IN_TOKYO)
    assert other is not None
    assert other.place.country == "JP"
    assert geoip.find(ip_address("8.8.8.8")) is None


def test_a_flat_database_of_one_version_knows_nothing_of_the_other(tmp_path: Path) -> None:
    places = {"81.2.69.0/24": flat("GB", 51.5, -0.1)}
    write_database(tmp_path / "v4.mmdb", places, version=4, kind="city ipv4")
    geoip = loaded(tmp_path)
    found = geoip.find(IN_LONDON)
    assert found is not None
    assert found.place == Place(51.5, -0.1, "GB")
    assert geoip.find(IN_TOKYO) is None


def test_the_first_exact_place_of_several_databases_counts(tmp_path: Path) -> None:
    write_database(tmp_path / "a.mmdb", {"81.2.69.0/24": nested("GB", 54.0, -2.0, city="")})
    write_database(tmp_path / "b.mmdb", {"81.2.69.0/24": LONDON})
    write_database(tmp_path / "c.mmdb", {"81.2.69.0/24": TOKYO})
    found = loaded(tmp_path).find(IN_LONDON)
    assert found is not None
    assert (found.database, found.place.country) == ("b.mmdb", "GB")


def test_whom_to_name_depends_on_the_database(tmp_path: Path) -> None:
    write_database(tmp_path / "a.mmdb", kind="DBIP-City-Lite")
    write_database(tmp_path / "b.mmdb", kind="city ipv6")
    write_database(tmp_path / "c.mmdb", kind="GeoLite2-City")
    texts = [one.url for one in loaded(tmp_path).attributions()]
    assert texts == ["https://db-ip.com", "https://www.maxmind.com"]


def test_without_a_database_there_is_no_place_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    geoip = Geoip(tmp_path / "none")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            geoip.refresh()
    assert geoip.find(IN_LONDON) is None
    assert (geoip.states(), geoip.age_s()) == ((), None)
    assert geoip.detail() == f"no database in {tmp_path / 'none'}"
    assert len(caplog.records) == 1


def test_a_new_file_is_noticed_and_replaces_the_one_before(tmp_path: Path) -> None:
    write_database(tmp_path / "a.mmdb", {"81.2.69.0/24": TOKYO})
    geoip = loaded(tmp_path)
    before = geoip.generation
    write_database(tmp_path / "a.mmdb", {"81.2.69.0/24": LONDON, "1.0.0.0/8": TOKYO})
    geoip.refresh()
    found = geoip.find(IN_LONDON)
    assert found is not None
    assert found.place.country == "GB"
    assert geoip.generation == before + 1
    geoip.refresh()
    assert geoip.generation == before + 1


def test_a_broken_new_file_leaves_the_old_database_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_database(tmp_path / "a.mmdb")
    geoip = loaded(tmp_path)
    (tmp_path / "a.mmdb").write_bytes(b"half a file")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            geoip.refresh()
    assert geoip.find(IN_LONDON) is not None
    (state,) = geoip.states()
    assert state.built_unix_s == BUILT_UNIX_S
    assert state.fault is not None
    assert "corrupt" in (geoip.detail() or "")
    assert len(caplog.records) == 1


def test_a_file_cut_short_under_our_feet_is_read_on(tmp_path: Path) -> None:
    path = write_database(tmp_path / "a.mmdb")
    geoip = loaded(tmp_path)
    with path.open("r+b") as file:
        file.truncate(
            0
        )  # under a mapping of the file itself the next look-up would end the process
    assert geoip.find(IN_LONDON) is not None


def test_a_file_that_is_taken_away_is_forgotten(tmp_path: Path) -> None:
    path = write_database(tmp_path / "a.mmdb")
    geoip = loaded(tmp_path)
    path.unlink()
    geoip.refresh()
    assert geoip.find(IN_LONDON) is None
    assert geoip.states() == ()


def test_beyond_the_limit_databases_are_left_alone(tmp_path: Path) -> None:
    for number in range(DATABASES_MAX + 3):
        write_database(tmp_path / f"{number:02}.mmdb")
    assert len(loaded(tmp_path).states()) == DATABASES_MAX


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "GeoLite2-ASN"}, "of type 'GeoLite2-ASN'"),
        ({"built_unix_s": 2**64 - 1}, "built at"),
        ({"networks": {"81.2.69.0/24": {"ip": "test"}}}, "knows no place"),
    ],
)
def test_a_database_of_no_use_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    path = write_database(tmp_path / "a.mmdb", **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=reason):
        Database(path)


@pytest.mark.parametrize("cut", [0, 1, 100, 1000])
def test_a_truncated_database_is_refused(tmp_path: Path, cut: int) -> None:
    path = write_database(tmp_path / "a.mmdb")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ConfigError, match="corrupt"):
        Database(path)


def test_a_database_that_breaks_while_it_serves_is_left_at_the_first_error(tmp_path: Path) -> None:
    write_database(tmp_path / "a.mmdb")
    geoip = loaded(tmp_path)
    geoip._serving["a.mmdb"]._reader.close()  # every look-up raises from now on
    assert geoip.find(IN_LONDON) is None
    (state,) = geoip.states()
    assert state.built_unix_s is None
    assert "corrupt" in (state.fault or "")


needs_data = pytest.mark.skipif(not BAD, reason="needs the databases of ../shared/data/geoip")


@needs_data
@pytest.mark.parametrize("name", BAD or ["none"])
def test_each_bad_file_is_a_clear_error_and_no_place(tmp_path: Path, name: str) -> None:
    path = DATA / "bad" / name
    with pytest.raises(ConfigError, match=name):
        Database(path)
    (tmp_path / name).write_bytes(path.read_bytes())
    geoip = loaded(tmp_path)
    assert geoip.find(IN_LONDON) is None
    assert name in (geoip.detail() or "")


@needs_data
@pytest.mark.parametrize("name", BAD or ["none"])
def test_each_bad_file_that_calls_itself_one_of_cities_is_an_error_too(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes((DATA / "bad" / name).read_bytes().replace(b"DTest", b"DCity"))
    with pytest.raises(ConfigError, match=name):
        Database(path)


@needs_data
@pytest.mark.parametrize(
    ("file", "exact"),
    [
        ("GeoIP2-City-Test.mmdb", True),
        ("GeoLite2-City-Test.mmdb", True),
        ("GeoLite2-Country-Test.mmdb", False),
    ],
)
def test_maxminds_own_databases_know_london(file: str, exact: bool) -> None:
    found = Database(DATA / file).find(IN_LONDON)
    assert found is not None
    assert (found.place.country, found.place.exact) == ("GB", exact)


def test_a_file_that_could_not_be_read_is_tried_again_and_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_database(tmp_path / "a.mmdb")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    geoip = Geoip(tmp_path)
    with monkeypatch.context() as disk:
        disk.setattr("shutil.copyfileobj", full)
        geoip.refresh()
        geoip.refresh()
    assert geoip.find(IN_LONDON) is None
    assert caplog.text.count("No space left on device") == 1
    geoip.refresh()
    assert geoip.find(IN_LONDON) is not None
    assert geoip.detail() is None
