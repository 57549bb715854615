"""The example of llm-d's TestSchedule: queues 0, 0, 10, KV in use 0.2, 0.2, 0.8.

Without the adapter that pod 2 has loaded, pods 1 and 2 score 1.8 and pod 3 0.2. The queue scorer's
README: shortest 1, longest 0, linear between, and 1 for all if all are equal.
"""

from math import nan
from random import Random

import pytest
from policy_bed import ask, picks, prefilled, seen

from firstlight.infra.sim.policies.llm_d import (
    APPROXIMATE_BLOCKS_MAX,
    MATCHED_BLOCKS_MAX,
    LlmDApproximate,
    LlmDPrecise,
    clamped,
)

PODS = [
    seen(1, waiting=0, kv_used_share=0.2),
    seen(2, waiting=0, kv_used_share=0.2),
    seen(3, waiting=10, kv_used_share=0.8),
]


def test_short_queues_and_free_kv_win() -> None:
    rule = LlmDPrecise()
    assert picks(rule, ask(blocks=(1,)), PODS) == {1, 2}
    assert rule.pick(ask(blocks=(1,)), PODS, Random(0)).reason == "score 1.80"


def test_the_longest_queue_with_little_kv_left_scores_little() -> None:
    pods = [seen(0, waiting=10, kv_used_share=0.8), seen(1, waiting=10, kv_used_share=1.0)]
    pick = LlmDPrecise().pick(ask(blocks=(1,)), pods, Random(0))
    assert (pick.server, pick.reason) == (0, "score 1.20")


def test_a_prefix_weighs_twice_as_much() -> None:
    cached = seen(3, waiting=10, kv_used_share=0.8, cached_tokens=512)
    assert picks(LlmDPrecise(2.0), ask(blocks=(1,)), [*PODS[:2], cached]) == {3}  # 2.2 > 1.8
    assert picks(LlmDPrecise(1.0), ask(blocks=(1,)), [*PODS[:2], cached]) == {1, 2}  # 1.2


def test_what_was_just_sent_counts_as_cached_for_two_seconds() -> None:
    rule = LlmDPrecise()
    rule.sent(ask(1, blocks=(5, 6), now_s=10.0), 1)
    same = [seen(0), seen(1)]
    assert picks(rule, ask(2, blocks=(5, 6), now_s=12.0), same) == {1}
    assert picks(rule, ask(3, blocks=(5, 6), now_s=12.1), same) == {0, 1}


def test_the_approximate_rule_knows_what_it_sent_and_not_what_is_cached() -> None:
    rule = LlmDApproximate()
    prefilled(rule, ask(1, blocks=(5, 6)), 1)
    servers = [seen(0, cached_tokens=1024), seen(1)]
    assert picks(rule, ask(2, blocks=(5, 6), now_s=500.0), servers) == {1}


@pytest.mark.parametrize("rule", [LlmDPrecise(), LlmDApproximate()])
def test_half_of_a_prompt_that_was_sent_there_is_half_a_score(
    rule: LlmDPrecise | LlmDApproximate,
) -> None:
    rule.sent(ask(1, blocks=(5, 6)), 1)
    pick = rule.pick(ask(2, blocks=(5, 6, 7, 8)), [seen(0), seen(1)], Random(0))
    assert (pick.server, pick.reason) == (1, "score 3.00")


def test_half_of_a_prompt_that_is_cached_is_half_a_score() -> None:
    pick = LlmDPrecise().pick(ask(blocks=(5, 6)), [seen(0, cached_tokens=512)], Random(0))
    assert pick.reason == "score 3.00"


def test_the_approximate_rule_looks_at_the_beginning_only() -> None:
    rule = LlmDApproximate()
    head = tuple(range(MATCHED_BLOCKS_MAX))
    prefilled(rule, ask(1, blocks=(*head, 100)), 1)
    pick = rule.pick(ask(2, blocks=(*head, 200)), [seen(0), seen(1)], Random(0))
    assert (pick.server, pick.reason) == (1, "score 4.00")


def test_limits_are_those_of_the_source_in_our_blocks() -> None:
    assert (APPROXIMATE_BLOCKS_MAX, MATCHED_BLOCKS_MAX) == (976, 8)


@pytest.mark.parametrize(("score", "kept"), [(-1.0, 0.0), (0.5, 0.5), (3.0, 1.0), (nan, 0.0)])
def test_a_score_stays_between_0_and_1(score: float, kept: float) -> None:
    assert clamped(score) == kept
