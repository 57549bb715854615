"""The example of Dynamo's router guide: three workers, of 10 blocks 2, 5, 8 are cached.

Prefill 8, 5, 2 blocks, active decode 10, 5, 9: costs 18, 10, 11, and worker 2 is selected.
"""

from collections import Counter
from math import e, nan
from random import Random

import pytest
from policy_bed import ask, picks, prefilled, seen

from firstlight.infra.sim.policies.dynamo import BLOCK_TOKENS, Dynamo, drawn

WORKERS = [
    seen(worker, cached_tokens=cached * BLOCK_TOKENS, own_in_flight=1)
    for worker, cached in [(1, 2), (2, 5), (3, 8)]
]
PROMPT = ask(0, tokens=10 * BLOCK_TOKENS)


def guide(scale: float = 1.0) -> Dynamo:
    rule = Dynamo(scale)
    for worker, decode_blocks in [(1, 10), (2, 5), (3, 9)]:
        prefilled(rule, ask(worker, tokens=decode_blocks * BLOCK_TOKENS), worker)
    return rule


def test_the_costs_of_the_guide() -> None:
    rule = guide()
    assert [rule.cost(PROMPT, worker) for worker in WORKERS] == [18.0, 10.0, 11.0]


def test_worker_2_of_the_guide_is_selected() -> None:
    assert picks(guide(), PROMPT, WORKERS) == {2}


def test_a_higher_weight_of_prefill_favours_what_is_cached() -> None:
    assert picks(guide(2.0), PROMPT, WORKERS) == {3}


def test_with_a_temperature_a_cost_is_drawn_by_its_place_between_lowest_and_highest() -> None:
    rng = Random(0)
    lots = Counter(drawn([18.0, 10.0, 11.0], 1.0, rng) for _ in range(40_000))
    weights = [e**-1.0, 1.0, e**-0.125]
    shares = [weight / sum(weights) for weight in weights]
    assert [lots[at] / 40_000 for at in range(3)] == pytest.approx(shares, abs=0.01)


def test_a_low_temperature_is_nearly_the_lowest() -> None:
    rng = Random(0)
    assert {drawn([18.0, 10.0, 11.0], 0.001, rng) for _ in range(1000)} == {1}


def test_equal_costs_are_drawn_alike() -> None:
    rng = Random(0)
    lots = Counter(drawn([5.0, 5.0], 0.5, rng) for _ in range(1000))
    assert 400 < lots[0] < 600


def test_a_cost_that_is_no_number_is_not_drawn() -> None:
    rng = Random(0)
    assert {drawn([nan, 10.0, 11.0], 1.0, rng) for _ in range(1000)} == {1, 2}


def test_what_was_sent_counts_at_once_without_what_is_cached() -> None:
    rule = Dynamo()
    servers = [seen(0, cached_tokens=160), seen(1)]
    first = ask(1, tokens=320)
    rule.pick(first, servers, Random(0))
    rule.sent(first, 0)
    # 160 tokens to compute, 320 to decode over, and 320 of the next prompt
    assert rule.cost(ask(2, tokens=320), seen(0, own_in_flight=1)) == (160 + 320 + 320) / 16


def test_more_cached_than_there_is_to_compute_costs_nothing() -> None:
    assert Dynamo().cost(ask(tokens=160), seen(0, cached_tokens=10_000)) == 0.0


def test_what_ended_costs_nothing() -> None:
    rule = guide()
    rule.ended(ask(1), 1, 100.0, 1.0)
    assert rule.cost(PROMPT, seen(1)) == 10.0
