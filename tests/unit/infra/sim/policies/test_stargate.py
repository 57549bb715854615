"""Figures of Stargate's tests.rs; the waiting follows its documentation."""

from math import nan
from random import Random

import pytest
from policy_bed import ask, go, picks, seen

from firstlight.infra.sim.policies import stargate
from firstlight.infra.sim.policies.outstanding import Outstanding
from firstlight.infra.sim.policies.stargate import PowerOfN, WaitAndWiden, ttft_ms

ONE = ask(1, tokens=1)


def work(server: int, rtt_ms: float, tokens_per_s: float, **known: object):
    return seen(server, rtt_ms=rtt_ms, prefill_ms_per_token=1e3 / tokens_per_s, **known)


def estimate(tokens: int, **known: object) -> float:
    one = work(0, 5.0, 8000.0, queued_prefill_tokens=80_000, **known)
    return ttft_ms(ask(tokens=tokens), one, Outstanding())


def test_a_free_slot_removes_the_queue_but_keeps_the_prefill() -> None:
    assert estimate(8000, running=24, sequences_max=25) == 1005.0


@pytest.mark.parametrize(("running", "slots"), [(25, 25), (26, 25), (24, 0)])
def test_without_one_the_queue_counts(running: int, slots: int) -> None:
    assert estimate(8000, running=running, sequences_max=slots) == 11_005.0


def test_power_of_n_takes_the_least_estimate_of_all_if_it_draws_all() -> None:
    servers = [
        work(0, 1.0, 100.0, queued_prefill_tokens=1000, sequences_max=0),
        work(1, 1.0, 1000.0),
        work(2, 1.0, 1000.0, queued_prefill_tokens=10_000, sequences_max=0),
    ]
    assert picks(PowerOfN(3.0), ask(tokens=1000), servers) == {1}


def test_power_of_n_draws_two_unless_told_otherwise() -> None:
    servers = [work(server, 10.0 * server, 1000.0) for server in range(4)]
    assert picks(PowerOfN(), ONE, servers) == {0, 1, 2}


def test_equal_scores_are_not_biased() -> None:
    assert picks(PowerOfN(3.0), ONE, [work(server, 1.0, 100.0) for server in range(3)]) == {0, 1, 2}


def test_what_was_sent_is_queued_at_once() -> None:
    rule = PowerOfN()
    go(rule, ask(1, tokens=1000), [work(0, 1.0, 1000.0)])
    full = work(0, 1.0, 1000.0, own_in_flight=1, sequences_max=1)
    assert picks(rule, ONE, [full, work(1, 900.0, 1000.0)]) == {1}
    rule.first_token(ask(1), 0, 1000.0, 1.0)
    assert picks(rule, ONE, [full, work(1, 900.0, 1000.0)]) == {0}


# A token takes 100 ms on all: TTFT is 105, 120 and 150 ms; the third is 45 ms behind the first.
BUCKETS = [work(0, 5.0, 10.0), work(1, 20.0, 10.0), work(2, 50.0, 10.0)]


def full(*servers: int) -> list:
    return [
        work(one.server, one.rtt_ms, 10.0, running=1, sequences_max=1)
        if one.server in servers
        else one
        for one in BUCKETS
    ]


def test_selection_is_limited_to_the_first_bucket() -> None:
    rule = WaitAndWiden(sample_count=1)
    assert picks(rule, ONE, BUCKETS) == {0, 1}


def test_a_bucket_ends_beyond_its_size() -> None:
    rule = WaitAndWiden(sample_count=1)
    assert picks(rule, ONE, [work(0, 5.0, 10.0), work(1, 25.0, 10.0)]) == {0, 1}
    assert picks(rule, ONE, [work(0, 5.0, 10.0), work(1, 25.5, 10.0)]) == {0}


def test_of_those_open_the_least_estimate_of_two_is_taken() -> None:
    assert picks(WaitAndWiden(), ONE, BUCKETS) == {0}


def test_a_longer_prompt_prefers_throughput() -> None:
    servers = [work(0, 10.0, 200.0), work(1, 1.0, 10.0)]
    assert picks(WaitAndWiden(), ask(tokens=100), servers) == {0}


def test_it_waits_a_quarter_of_the_gap_for_the_next_bucket() -> None:
    rule = WaitAndWiden()
    pick = rule.pick(ONE, full(0, 1), Random(0))
    assert (pick.server, pick.wait_s) == (None, pytest.approx(0.01125))
    later = ask(1, tokens=1, now_s=pick.wait_s + 1e-9)
    assert rule.pick(later, full(0, 1), Random(0)).server == 2


def test_a_slot_that_becomes_free_ends_the_waiting() -> None:
    rule = WaitAndWiden()
    rule.pick(ONE, full(0, 1), Random(0))
    assert rule.pick(ask(1, tokens=1, now_s=0.005), full(0), Random(0)).server == 1


def test_a_later_bucket_opens_after_all_before_it() -> None:
    servers = [
        work(0, 5.0, 10.0, running=1, sequences_max=1),
        work(1, 45.0, 10.0, running=1, sequences_max=1),
        work(2, 105.0, 10.0),
    ]
    pick = WaitAndWiden().pick(ONE, servers, Random(0))
    assert pick.wait_s == pytest.approx(0.25 * (0.040 + 0.060))


def test_with_all_full_it_looks_again_and_refuses_after_a_minute() -> None:
    rule = WaitAndWiden()
    assert rule.pick(ONE, full(0, 1, 2), Random(0)).wait_s == 0.05
    assert rule.pick(ask(1, tokens=1, now_s=59.99), full(0, 1, 2), Random(0)).wait_s <= 0.0101
    gone = rule.pick(ask(1, tokens=1, now_s=60.0), full(0, 1, 2), Random(0))
    assert (gone.server, gone.wait_s) == (None, 0.0)


def test_each_request_waits_by_itself() -> None:
    rule = WaitAndWiden()
    rule.pick(ONE, full(0, 1, 2), Random(0))
    assert rule.pick(ask(2, tokens=1, now_s=60.0), full(0, 1, 2), Random(0)).wait_s == 0.05


def test_a_wait_is_never_so_short_that_time_stands_still() -> None:
    rule = WaitAndWiden()
    rule.pick(ONE, full(0, 1), Random(0))
    almost = ask(1, tokens=1, now_s=0.01125 - 1e-12)
    assert rule.pick(almost, full(0, 1), Random(0)).wait_s == 0.001


def test_a_server_whose_estimate_is_no_number_is_left_out() -> None:
    rule = WaitAndWiden()
    assert picks(rule, ONE, [seen(0, rtt_ms=nan), seen(1)]) == {1}
    assert rule.pick(ONE, [seen(0, rtt_ms=nan)], Random(0)).server is None


def test_beyond_the_limit_the_oldest_waits_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stargate, "WAITING_MAX", 1)
    rule = WaitAndWiden()
    rule.pick(ask(1, tokens=1), full(0, 1, 2), Random(0))
    rule.pick(ask(2, tokens=1), full(0, 1, 2), Random(0))
    assert rule.pick(ask(1, tokens=1, now_s=60.0), full(0, 1, 2), Random(0)).wait_s == 0.05
