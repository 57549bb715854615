"""The example of GORGO's TestGORGOSelectsLowestCost: 10 × 500, 2 × 100, 5 × 300 running tokens.

A prompt of 50 tokens at 0.094 ms: 474.7, 23.5 and 145.7 ms, so the second server.
"""

from random import Random

import pytest
from policy_bed import ask, picks, seen

from firstlight.infra.sim.policies.gorgo import Gorgo

LOADS = [(0, 10, 500), (1, 2, 100), (2, 5, 300)]
SERVERS = [
    seen(server, own_in_flight=count, rtt_ms=0.0, prefill_ms_per_token=0.094)
    for server, count, _ in LOADS
]


def loaded(running_factor: float = 1.0) -> Gorgo:
    rule = Gorgo(running_factor)
    request = 100
    for server, count, tokens in LOADS:
        for _ in range(count):
            rule.sent(ask(request, tokens=tokens), server)
            request += 1
    return rule


def test_the_costs_of_the_example() -> None:
    rule, one = loaded(), ask(tokens=50)
    costs = [rule.cost_ms(one, server, 0) for server in SERVERS]
    assert costs == pytest.approx([474.7, 23.5, 145.7])


def test_the_lowest_cost_is_selected() -> None:
    assert picks(loaded(), ask(tokens=50), SERVERS) == {1}


def test_running_requests_count_by_their_factor() -> None:
    assert loaded(0.1).cost_ms(ask(tokens=50), SERVERS[0], 0) == pytest.approx(51.7)


def test_the_round_trip_is_part_of_the_cost() -> None:
    near, far = seen(0, rtt_ms=37.0), seen(1, rtt_ms=279.0)
    assert picks(Gorgo(), ask(tokens=50), [near, far]) == {0}
    rule = Gorgo()
    rule.sent(ask(1, tokens=3000), 0)
    assert picks(rule, ask(2, tokens=50), [seen(0, rtt_ms=37.0, own_in_flight=1), far]) == {1}


def test_a_prefix_is_known_when_its_server_has_answered() -> None:
    rule, one = Gorgo(), ask(1, blocks=(1, 2))
    rule.sent(one, 1)
    rule.ended(one, 1, 50.0, 1.0)
    servers = [seen(0), seen(1)]
    assert picks(rule, ask(2, blocks=(1, 2)), servers) == {0, 1}
    rule.first_token(one, 1, 10.0, 0.5)
    assert picks(rule, ask(2, blocks=(1, 2)), servers) == {1}


def test_a_cached_prefix_saves_its_tokens_and_no_more_than_the_prompt() -> None:
    rule = Gorgo()
    one = seen(0, rtt_ms=0.0, prefill_ms_per_token=0.5)
    assert rule.cost_ms(ask(tokens=1000, blocks=(1, 2)), one, 1) == (1000 - 512) * 0.5
    assert rule.cost_ms(ask(tokens=1000, blocks=(1, 2)), one, 2) == 0.0


def test_a_waiting_request_is_five_hundred_tokens_until_one_was_sent() -> None:
    one = seen(0, rtt_ms=0.0, waiting=2, prefill_ms_per_token=0.1)
    rule = Gorgo()
    assert rule.cost_ms(ask(tokens=0), one, 0) == pytest.approx(2 * 500 * 0.1)
    rule.sent(ask(1, tokens=2000), 1)
    # two that this decider did not send wait: they count as running, and as waiting again
    assert rule.cost_ms(ask(tokens=0), one, 0) == pytest.approx((2 * 2000 + 2 * 2000) * 0.1)


def test_ties_are_broken_by_lot() -> None:
    assert {Gorgo().pick(ask(), [seen(0), seen(1)], Random(s)).server for s in range(32)} == {0, 1}
