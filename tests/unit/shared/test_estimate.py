"""Quantiles, sums that decay, and round trips that forget and stay bounded."""

import math

import pytest

from firstlight.shared.estimate import (
    RTT_SAMPLES_MAX,
    DecayingSum,
    RttEstimate,
    Throughput,
    quantile,
)


def test_a_quantile_is_linear_between_neighbours() -> None:
    assert [quantile([4, 1, 3, 2], share) for share in (0, 0.5, 1)] == [1, 2.5, 4]


def test_a_sum_halves_in_its_half_life() -> None:
    total = DecayingSum(half_life_s=2)
    total.add(8, now=0)
    total.add(1, now=2)
    assert [total.value(2), total.value(4)] == [5, 2.5]


def test_a_round_trip_is_the_prior_until_it_is_measured() -> None:
    rtt = RttEstimate(prior_ms=80)
    assert (rtt.ms, rtt.measured) == (80, False)
    rtt.observe(20, now=0)
    assert (rtt.ms, rtt.measured) == (20, True)


def test_one_lost_packet_does_not_move_a_round_trip() -> None:
    rtt = RttEstimate(prior_ms=80)
    for second in range(20):
        rtt.observe(1000 if second == 10 else 20, now=second)
    assert rtt.ms == 20


def test_a_round_trip_forgets_what_is_older_than_a_minute_and_nonsense() -> None:
    rtt = RttEstimate(prior_ms=80)
    rtt.observe(500, now=0)
    rtt.observe(20, now=61)
    for nonsense in (-1.0, math.nan, math.inf):
        rtt.observe(nonsense, now=62)
    assert rtt.ms == 20


def test_a_round_trip_keeps_a_bounded_number_of_samples() -> None:
    rtt = RttEstimate(prior_ms=80)
    for i in range(10 * RTT_SAMPLES_MAX):
        rtt.observe(1000 if i < 9 * RTT_SAMPLES_MAX else 10, now=i / 1000)
    assert rtt.ms == 10


def test_a_throughput_is_the_prior_until_a_megabyte_was_moved() -> None:
    path = Throughput(1e6)
    assert path.ms(1_000_000, 0.0) == 1000.0
    path.observe(1000, 1.0, 0.0)
    assert not path.measured(0.0)
    path.observe(10_000_000, 1.0, 0.0)
    assert path.measured(0.0)
    assert path.ms(1_000_000, 0.0) == pytest.approx(1e6 * 2 / 10_001_000 * 1000)


def test_a_throughput_forgets_by_time() -> None:
    path = Throughput(1e6, half_life_s=10.0)
    path.observe(8 << 20, 1.0, 0.0)
    path.observe(8 << 20, 8.0, 60.0)
    assert path.ms(1 << 20, 60.0) == pytest.approx(1000.0, rel=0.02)
    assert not path.measured(200.0)
