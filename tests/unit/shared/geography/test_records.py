"""From either shape of a database's record to a place."""

from math import nan

import pytest
from mmdb_bed import flat, nested

from firstlight.shared.geography.countries import country_place
from firstlight.shared.geography.records import place_of
from firstlight.shared.routing.geo import Place


@pytest.mark.parametrize("shape", [nested, flat])
def test_a_city_is_a_place_in_either_shape(shape: object) -> None:
    assert callable(shape)
    assert place_of(shape("GB", 51.5, -0.1)) == Place(51.5, -0.1, "GB", exact=True)


@pytest.mark.parametrize("shape", [nested, flat])
def test_a_record_without_a_city_is_its_country(shape: object) -> None:
    assert callable(shape)
    assert place_of(shape("JP", 35.69, 139.69, city="")) == Place(36, 138, "JP", exact=False)


def test_a_wide_radius_is_the_country() -> None:
    at_limit, above = (nested("JP", 35.7, 139.7, radius_km=km) for km in (200, 201))
    assert place_of(at_limit) == Place(35.7, 139.7, "JP", exact=True)
    assert place_of(above) == country_place("JP")


@pytest.mark.parametrize(("code", "point"), [("US", (37.751, -97.822)), ("NO", (62.0, 10.0))])
def test_a_point_that_stands_for_a_country_is_the_country(
    code: str, point: tuple[float, float]
) -> None:
    place = place_of(nested(code, *point, city="Somewhere"))
    assert place is not None
    assert not place.exact


def test_a_country_stands_where_its_people_live() -> None:
    place = country_place("RU")
    assert place is not None
    assert place.longitude < 60  # the middle of the land is at 100


def test_in_a_small_country_the_country_is_as_good_as_a_city() -> None:
    place = place_of({"country_code": "SG"})
    assert place is not None
    assert place.exact


def test_a_subdivision_is_as_good_as_a_city() -> None:
    record = {**nested("GB", 51.5, -0.1, city=""), "subdivisions": [{"iso_code": "ENG"}]}
    assert place_of(record) == Place(51.5, -0.1, "GB", exact=True)


def test_who_is_only_registered_in_a_country_is_taken_to_be_there() -> None:
    assert place_of({"registered_country": {"iso_code": "FR"}}) == country_place("FR")


def test_a_point_in_an_unknown_country_is_better_than_nothing() -> None:
    record = {"location": {"latitude": 1.5, "longitude": 2.5}}
    assert place_of(record) == Place(1.5, 2.5, "", exact=False)


@pytest.mark.parametrize(
    "record",
    [
        None,
        197379,
        "text",
        [],
        {},
        {"ip": "test"},
        {"country": {"iso_code": "QQ"}},
        {"country": {"iso_code": 5}, "location": []},
        {"country_code": "", "latitude": 91.0, "longitude": 0.0},
        {"latitude": nan, "longitude": 0.0},
        {"latitude": True, "longitude": True},
        {"latitude": "51", "longitude": "0"},
        {"city": "Null Island", "latitude": 0.0, "longitude": 0.0},
    ],
)
def test_a_record_that_says_nothing_is_no_place(record: object) -> None:
    assert place_of(record) is None
