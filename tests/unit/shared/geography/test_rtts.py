"""What clients say of round trips: clamped, bounded, steering nobody else until agreed."""

from ipaddress import ip_address, ip_network
from math import inf, nan

import pytest

from firstlight.shared.geography.rtts import (
    CLIENTS_MAX,
    EDGES_MAX,
    KEPT_S,
    NEIGHBOURS_MAX,
    NETWORKS_MAX,
    RTT_MS_MAX,
    Fate,
    ReportedRtts,
)
from firstlight.shared.routing.geo import Place, distance_km, light_rtt_ms

NETWORK = ip_network("203.0.113.0/24")
LONDON, TOKYO = Place(51.5, -0.1, "GB"), Place(35.7, 139.7, "JP")


def tell(rtts: ReportedRtts, *words: tuple[int, float], now: float = 0.0) -> None:
    for host, ms in words:
        assert rtts.tell(NETWORK[host], "e", ms, now) is not Fate.REFUSED


def test_two_clients_steer_nobody_and_three_that_agree_do() -> None:
    rtts = ReportedRtts()
    tell(rtts, (1, 20.0), (2, 21.0))
    assert rtts.agreed(NETWORK, 0) == {}
    tell(rtts, (3, 22.0))
    assert rtts.agreed(NETWORK, 0) == {"e": 21.0}


def test_one_client_that_speaks_often_is_still_one() -> None:
    rtts = ReportedRtts()
    tell(rtts, *[(1, 20.0)] * 10)
    assert rtts.agreed(NETWORK, 0) == {}


def test_addresses_of_one_64_are_one_client() -> None:
    rtts = ReportedRtts()
    for host in range(1, 6):
        rtts.tell(ip_address(f"2001:db8:1:2::{host}"), "e", 20.0, 0)
    network = ip_network("2001:db8:1::/48")
    assert rtts.agreed(network, 0) == {}
    for part in range(3, 5):
        rtts.tell(ip_address(f"2001:db8:1:{part}::1"), "e", 20.0, 0)
    assert rtts.agreed(network, 0) == {"e": 20.0}


def test_clients_that_contradict_each_other_agree_on_nothing() -> None:
    rtts = ReportedRtts()
    tell(rtts, (1, 10.0), (2, 100.0), (3, 1000.0))
    assert rtts.agreed(NETWORK, 0) == {}


def test_a_liar_among_honest_ones_moves_little() -> None:
    rtts = ReportedRtts()
    tell(rtts, (1, 100.0), (2, 101.0), (3, 102.0), (4, 1.0))
    assert rtts.agreed(NETWORK, 0) == {"e": 100.5}


def test_as_many_liars_as_honest_ones_stop_the_agreement() -> None:
    rtts = ReportedRtts()
    tell(rtts, *[(i, 100.0) for i in range(1, 5)], *[(i, 1.0) for i in range(5, 9)])
    assert rtts.agreed(NETWORK, 0) == {}


def test_another_network_is_not_moved() -> None:
    rtts = ReportedRtts()
    tell(rtts, (1, 20.0), (2, 20.0), (3, 20.0))
    assert rtts.agreed(ip_network("203.0.114.0/24"), 0) == {}


@pytest.mark.parametrize("ms", [nan, inf, -inf, 0.0, -5.0])
def test_what_is_no_round_trip_is_refused_and_not_kept(ms: float) -> None:
    rtts = ReportedRtts()
    assert rtts.tell(NETWORK[1], "e", ms, 0) is Fate.REFUSED
    assert rtts.networks == 0


def test_nothing_is_faster_than_light() -> None:
    rtts = ReportedRtts()
    for host in (1, 2, 3):
        fate = rtts.tell(NETWORK[host], "e", 1.0, 0, client_place=TOKYO, edge_place=LONDON)
        assert fate is Fate.CLAMPED
    assert rtts.agreed(NETWORK, 0) == {"e": light_rtt_ms(distance_km(TOKYO, LONDON))}


def test_a_place_that_is_only_a_country_clamps_nothing() -> None:
    country = Place(36, 138, "JP", exact=False)
    rtts = ReportedRtts()
    for client, edge in ((country, LONDON), (LONDON, country), (None, LONDON), (TOKYO, None)):
        fate = rtts.tell(NETWORK[1], "e", 1.0, 0, client_place=client, edge_place=edge)
        assert fate is Fate.TAKEN


def test_what_is_absurdly_long_is_cut() -> None:
    rtts = ReportedRtts()
    for host in (1, 2, 3):
        assert rtts.tell(NETWORK[host], "e", 1e9, 0) is Fate.CLAMPED
    assert rtts.agreed(NETWORK, 0) == {"e": RTT_MS_MAX}


def test_words_age_out() -> None:
    rtts = ReportedRtts()
    tell(rtts, (1, 20.0), (2, 20.0), (3, 20.0))
    assert rtts.agreed(NETWORK, KEPT_S) == {"e": 20.0}
    assert rtts.agreed(NETWORK, KEPT_S + 1) == {}
    rtts.expire(KEPT_S)
    assert rtts.networks == 1
    rtts.expire(KEPT_S + 1)
    assert rtts.networks == 0


def test_the_latest_word_of_a_client_counts() -> None:
    rtts = ReportedRtts()
    tell(rtts, (1, 20.0), (2, 20.0), (3, 20.0))
    tell(rtts, (1, 50.0), (2, 50.0), (3, 50.0), now=1)
    assert rtts.agreed(NETWORK, 1) == {"e": 50.0}


def test_memory_is_bounded_by_clients_and_edges() -> None:
    rtts = ReportedRtts()
    for host in range(200):
        rtts.tell(NETWORK[host], "e", 20.0, 0)
    tell(rtts, *[(host, 90.0) for host in range(CLIENTS_MAX)])
    assert rtts.agreed(NETWORK, 0) == {"e": 90.0}  # none of the older 200 is left
    for edge in range(2 * EDGES_MAX):
        for host in (1, 2, 3):
            rtts.tell(NETWORK[host], f"e{edge}", 20.0, 0)
    assert set(rtts.agreed(NETWORK, 0)) == {f"e{i}" for i in range(EDGES_MAX, 2 * EDGES_MAX)}


def test_who_owns_a_large_network_cannot_drive_out_the_others() -> None:
    rtts = ReportedRtts()
    tell(rtts, (1, 20.0), (2, 20.0), (3, 20.0))
    base = int(ip_address("2001:db8::"))
    for i in range(2 * NEIGHBOURS_MAX):
        rtts.tell(ip_address(base + (i << 80)), "e", 20.0, 1)
    assert rtts.networks == NEIGHBOURS_MAX + 1
    assert rtts.agreed(NETWORK, 1) == {"e": 20.0}


def test_beyond_the_limit_the_network_that_was_silent_longest_goes() -> None:
    rtts = ReportedRtts()
    tell(rtts, (1, 20.0), (2, 20.0), (3, 20.0))
    for i in range(NETWORKS_MAX):
        rtts.tell(ip_address((i % 250 + 1) << 24 | i // 250 << 16), "e", 20.0, 1)
    assert rtts.networks == NETWORKS_MAX
    assert rtts.agreed(NETWORK, 1) == {}


def test_all_that_is_agreed_is_told_with_the_latest_first() -> None:
    rtts = ReportedRtts()
    tell(rtts, (1, 20.0), (2, 20.0), (3, 20.0))
    for host in (1, 2, 3):
        rtts.tell(ip_address(f"192.0.2.{host}"), "e", 30.0, 1)
    rtts.tell(ip_address("198.51.100.1"), "e", 30.0, 2)
    told = [(str(network), dict(edges)) for network, edges in rtts.all_agreed(2, 10)]
    assert told == [("192.0.2.0/24", {"e": 30.0}), ("203.0.113.0/24", {"e": 20.0})]
    assert len(list(rtts.all_agreed(2, 1))) == 1
