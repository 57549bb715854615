"""What an operator says of a node's site."""

from dataclasses import replace
from math import nan

import pytest

from firstlight.shared.errors import ConfigError
from firstlight.shared.geography.site import SiteConfig, guess_rtt_ms, ips_of
from firstlight.shared.types import NodeInfo, Role


def info(address: str, *ips: str) -> NodeInfo:
    return NodeInfo("e", Role.EDGE, 1, "r", address, ips=ips)


def test_a_place_is_both_degrees_or_none() -> None:
    assert SiteConfig().place is None
    assert SiteConfig(latitude=51.5, longitude=-0.1).place == (51.5, -0.1)


@pytest.mark.parametrize(
    "given",
    [
        {"latitude": 51.5},
        {"latitude": 91.0, "longitude": 0.0},
        {"latitude": nan, "longitude": 0.0},
        {"ips": ("somewhere",)},
        {"ips": ("192.0.2.1",) * 17},
    ],
)
def test_what_is_no_place_and_no_address_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        SiteConfig(**given)  # type: ignore[arg-type]


def test_dns_gives_what_was_said_else_the_address_if_it_is_one() -> None:
    assert ips_of(info("edge.example:443", "192.0.2.1")) == ("192.0.2.1",)
    assert ips_of(info("192.0.2.7:443")) == ("192.0.2.7",)
    assert ips_of(info("[2001:db8::1]:443")) == ("2001:db8::1",)
    assert ips_of(info("edge.example:443")) == ()


def test_a_round_trip_is_guessed_where_both_sides_say_where_they_stand() -> None:
    london = SiteConfig(latitude=51.5, longitude=-0.1)
    paris = replace(info("e:1"), place=(48.86, 2.35))
    assert guess_rtt_ms(london, paris, otherwise_ms=50.0) == pytest.approx(5.0 + 344 * 0.016, 0.01)
    assert guess_rtt_ms(london, info("e:1"), otherwise_ms=50.0) == 50.0
    assert guess_rtt_ms(SiteConfig(), paris, otherwise_ms=50.0) == 50.0
