"""From a database's record to a place. Sans-IO.

Two shapes: MaxMind's nests (`location.latitude`, `country.iso_code`, `city.names`), DB-IP's is flat
(`latitude`, `country_code`, `city`). A record that names no city or subdivision, lies at its
country's point, or says that it may be 200 km off counts as the country alone.
"""

from collections.abc import Mapping
from math import isfinite

from firstlight.shared.geography.countries import country_place, is_country_point
from firstlight.shared.routing.geo import Place, on_earth

RADIUS_KM_MAX = 200.0
"""Of what counts as more than the country."""


def place_of(record: object) -> Place | None:
    """Where a record says that a client is; None if it says nothing that can be used."""
    if not isinstance(record, Mapping):
        return None
    country = _country(record)
    point = _point(record)
    if point is None:
        return country_place(country)
    if _names_a_city(record) and not _is_wide(record) and not is_country_point(country, *point):
        return Place(*point, country=country)
    return country_place(country) or Place(*point, country=country, exact=False)


def _country(record: Mapping[object, object]) -> str:
    for key in ("country", "registered_country"):
        nested = record.get(key)
        code = nested.get("iso_code") if isinstance(nested, Mapping) else None
        if isinstance(code, str) and len(code) == 2:
            return code
    flat = record.get("country_code")
    return flat if isinstance(flat, str) and len(flat) == 2 else ""


def _point(record: Mapping[object, object]) -> tuple[float, float] | None:
    nested = record.get("location")
    source = nested if isinstance(nested, Mapping) else record
    latitude, longitude = _number(source.get("latitude")), _number(source.get("longitude"))
    if latitude is None or longitude is None or not on_earth(latitude, longitude):
        return None
    return None if latitude == longitude == 0.0 else (latitude, longitude)  # 0, 0: not known


def _names_a_city(record: Mapping[object, object]) -> bool:
    names = (record.get(key) for key in ("city", "subdivisions", "state1"))
    return any(bool(name) for name in names)


def _is_wide(record: Mapping[object, object]) -> bool:
    nested = record.get("location")
    radius_km = _number(nested.get("accuracy_radius")) if isinstance(nested, Mapping) else None
    return radius_km is not None and radius_km > RADIUS_KM_MAX


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) else None
