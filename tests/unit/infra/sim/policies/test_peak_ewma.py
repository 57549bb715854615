"""Finagle's formula worked by hand, and what its P2CPeakEwmaTest says in words."""

from math import exp, inf, nan
from random import Random

import pytest
from policy_bed import ask, picks, seen

from firstlight.infra.sim.policies import peak_ewma
from firstlight.infra.sim.policies.peak_ewma import PENALTY_MS, PeakEwma


def sampled(*samples: tuple[float, float]) -> PeakEwma:
    rule = PeakEwma(10.0)
    for ttft_ms, now_s in samples:
        rule.first_token(ask(), 0, ttft_ms, now_s)
    return rule


def test_a_peak_is_believed_at_once() -> None:
    assert sampled((100.0, 0.0), (250.0, 0.0)).load(seen(0), 0.0) == 250.0


def test_a_lower_sample_counts_by_the_time_since_the_last() -> None:
    kept = exp(-5.0 / 10.0)
    load = sampled((100.0, 0.0), (20.0, 5.0)).load(seen(0), 5.0)
    assert load == pytest.approx(100.0 * kept + 20.0 * (1.0 - kept))


def test_what_is_not_used_is_forgiven() -> None:
    assert sampled((100.0, 0.0)).load(seen(0), 10.0) == pytest.approx(100.0 / exp(1.0))


def test_reading_changes_nothing() -> None:
    rule = sampled((100.0, 0.0))
    rule.load(seen(0), 5.0)
    assert rule.load(seen(0), 10.0) == pytest.approx(100.0 / exp(1.0))


def test_load_is_latency_times_what_would_be_open() -> None:
    assert sampled((100.0, 0.0)).load(seen(0, own_in_flight=2), 0.0) == 300.0


def test_a_node_without_history_is_probed_at_most_once() -> None:
    rule = sampled((100.0, 0.0))
    new = seen(1)
    assert picks(rule, ask(), [seen(0, own_in_flight=50), new]) == {1}
    probed = seen(1, own_in_flight=1)
    assert rule.load(probed, 0.0) == PENALTY_MS + 1
    assert picks(rule, ask(), [seen(0, own_in_flight=50), probed]) == {0}


def test_load_follows_latency() -> None:
    rule = PeakEwma()
    rule.first_token(ask(), 0, 5.0, 0.0)
    rule.first_token(ask(), 1, 10.0, 0.0)
    assert picks(rule, ask(), [seen(0), seen(1)]) == {0}
    assert picks(rule, ask(), [seen(0, own_in_flight=2), seen(1)]) == {1}


@pytest.mark.parametrize("nonsense", [nan, inf, -1.0])
def test_what_is_no_time_is_no_sample(nonsense: float) -> None:
    assert sampled((100.0, 0.0), (nonsense, 0.0)).load(seen(0), 0.0) == 100.0


def test_time_that_runs_backwards_forgives_nothing() -> None:
    assert sampled((100.0, 50.0)).load(seen(0), 0.0) == 100.0


def test_beyond_the_limit_the_server_known_first_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peak_ewma, "SERVERS_MAX", 2)
    rule = PeakEwma()
    for server in range(3):
        rule.first_token(ask(), server, 100.0, 0.0)
    assert [rule.load(seen(server), 0.0) for server in range(3)] == [0.0, 100.0, 100.0]


def test_only_two_are_compared() -> None:
    rule, rng = PeakEwma(), Random(0)
    for server in range(4):
        rule.first_token(ask(), server, 10.0 * (server + 1), 0.0)
    lots = [rule.pick(ask(), [seen(at) for at in range(4)], rng).server for _ in range(6000)]
    assert [round(lots.count(server) / 1000) for server in range(4)] == [3, 2, 1, 0]
