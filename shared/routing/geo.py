"""How long a packet takes between two places, if nobody has measured it. Sans-IO.

    prior = great-circle km / 100 km per ms × 1.6 + 5 ms

Light in fibre goes 100 km and back in a millisecond; cables are about 1.6 times as long as the
great circle; and 5 ms go to the last mile and the machines. It is a first guess: whatever was
measured replaces it. The floor, which no measurement can be below, is light in vacuum along the
great circle.
"""

from dataclasses import dataclass
from math import asin, cos, isfinite, radians, sin, sqrt

EARTH_RADIUS_KM = 6371.0
FIBRE_KM_PER_MS = 100.0
"""There and back."""
DETOUR = 1.6
LAST_MILE_MS = 5.0
LIGHT_KM_PER_MS = 299.792458 / 2
"""There and back, in vacuum: radio links over land and satellites come close to it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A point on the earth, and how much is known by it."""

    latitude: float
    longitude: float
    country: str = ""
    """ISO 3166-1 alpha-2, if it is known."""
    exact: bool = True
    """False: only the country is known, and the point stands for it."""


def on_earth(latitude: float, longitude: float) -> bool:
    """Whether these are degrees of a place."""
    return abs(latitude) <= 90.0 and abs(longitude) <= 180.0  # false for NaN


def distance_km(one: Place, other: Place) -> float:
    """Along the great circle, by the haversine formula."""
    a, b = radians(one.latitude), radians(other.latitude)
    half_b = sin((b - a) / 2) ** 2
    half_l = sin(radians(other.longitude - one.longitude) / 2) ** 2
    return 2 * EARTH_RADIUS_KM * asin(sqrt(min(1.0, half_b + cos(a) * cos(b) * half_l)))


def prior_rtt_ms(km: float) -> float:
    """The round trip to expect over this distance. Raises `ValueError` if it is none."""
    if not (isfinite(km) and km >= 0):
        raise ValueError(f"distance {km} km, expected a number from 0 on")
    return km / FIBRE_KM_PER_MS * DETOUR + LAST_MILE_MS


def light_rtt_ms(km: float) -> float:
    """The round trip that nothing can beat over this distance."""
    return km / LIGHT_KM_PER_MS


def prior_between_ms(one: Place, other: Place) -> float:
    """`prior_rtt_ms` of the distance between two places."""
    return prior_rtt_ms(distance_km(one, other))


def guess_ms(one: Place | None, other: Place | None, *, otherwise_ms: float) -> float:
    """`prior_between_ms`, or what is said for places that are not both known."""
    return otherwise_ms if one is None or other is None else prior_between_ms(one, other)
