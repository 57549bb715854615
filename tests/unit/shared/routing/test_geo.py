"""Distance, the prior made of it, and the floor that light sets."""

from math import inf, nan

import pytest

from firstlight.shared.routing.geo import (
    Place,
    distance_km,
    light_rtt_ms,
    on_earth,
    prior_between_ms,
    prior_rtt_ms,
)

LONDON, NEW_YORK = Place(51.5074, -0.1278), Place(40.7128, -74.0060)


def test_the_distance_is_that_of_the_great_circle() -> None:
    assert distance_km(LONDON, NEW_YORK) == pytest.approx(5570, abs=5)
    assert distance_km(NEW_YORK, LONDON) == distance_km(LONDON, NEW_YORK)


def test_the_date_line_is_no_distance() -> None:
    assert distance_km(Place(0, 179.9), Place(0, -179.9)) == pytest.approx(22.2, abs=0.1)


def test_opposite_ends_of_the_earth_are_half_its_girth_apart() -> None:
    assert distance_km(Place(90, 0), Place(-90, 0)) == pytest.approx(20015, abs=1)


def test_the_prior_is_fibre_times_a_detour_and_the_last_mile() -> None:
    assert prior_rtt_ms(0) == 5
    assert prior_rtt_ms(1000) == pytest.approx(21)
    assert prior_between_ms(LONDON, NEW_YORK) == pytest.approx(94.1, abs=0.1)


def test_nothing_is_faster_than_light_in_vacuum() -> None:
    assert light_rtt_ms(299.792458) == pytest.approx(2)
    assert light_rtt_ms(5570) < 5570 / 100 < prior_rtt_ms(5570)


@pytest.mark.parametrize("km", [nan, inf, -1.0])
def test_no_prior_is_made_of_nonsense(km: float) -> None:
    with pytest.raises(ValueError, match="distance"):
        prior_rtt_ms(km)


@pytest.mark.parametrize("place", [(91, 0), (0, 181), (nan, 0), (0, nan), (inf, 0)])
def test_what_is_not_on_earth_is_no_place(place: tuple[float, float]) -> None:
    assert not on_earth(*place)


def test_the_poles_and_the_date_line_are_on_earth() -> None:
    assert on_earth(-90, 180)
    assert on_earth(90, -180)
