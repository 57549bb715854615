"""The steps of AIBrix's Test_PrefixCacheE2E, and the imbalance of its README.

Blocks here are four letters there: abcdefgh is (1, 2), abcd (1,), abcdefghijkl (1, 2, 3).
"""

import pytest
from policy_bed import ask, go, picks, seen

from firstlight.infra.sim.policies.aibrix import AIBrix, allowed_requests, imbalanced


def pods(*counts: int) -> list:
    return [seen(pod, own_in_flight=count) for pod, count in enumerate(counts, 1)]


def knowing(**sent: tuple[int, ...]) -> AIBrix:
    rule = AIBrix()
    for number, (pod, blocks) in enumerate(sent.items()):
        rule.sent(ask(number, blocks=blocks), int(pod[1:]))
    return rule


def test_no_match_goes_where_the_fewest_requests_are() -> None:
    assert picks(AIBrix(), ask(blocks=(1, 2)), pods(0, 0, 0, 0)) == {1, 2, 3, 4}
    assert picks(knowing(p4=(1, 2)), ask(blocks=(9,)), pods(0, 0, 0, 1)) == {1, 2, 3}


def test_a_match_with_balanced_load_is_taken() -> None:
    rule = knowing(p4=(1, 2), p3=(9,))
    assert picks(rule, ask(blocks=(1, 2)), pods(0, 0, 1, 1)) == {4}


def test_a_match_that_stands_out_by_load_is_not() -> None:
    rule = knowing(p4=(1, 2), p3=(9,))  # 2 requests > 0.75 + 0.83
    assert picks(rule, ask(blocks=(1,)), pods(0, 0, 1, 2)) == {1, 2}


def test_a_shorter_match_is_taken_if_the_longer_one_is_too_busy() -> None:
    rule = knowing(p4=(1, 2), p3=(9,), p2=(1,))  # 2 requests > 1 + 0.71
    assert picks(rule, ask(blocks=(1, 2, 3)), pods(0, 1, 1, 2)) == {2}


def test_equal_matches_within_the_limit_go_by_requests_then_by_lot() -> None:
    rule = knowing(p4=(1, 2), p2=(1, 2, 3))
    assert picks(rule, ask(blocks=(1, 2)), pods(0, 2, 1, 2)) == {2, 4}
    assert picks(rule, ask(blocks=(1, 2)), pods(0, 1, 1, 2)) == {2}


def test_with_severe_imbalance_only_the_idlest_may_match() -> None:
    rule = knowing(p4=(1, 2), p2=(1, 2, 3))
    assert picks(rule, ask(blocks=(1, 2)), pods(0, 9, 1, 2)) == {1}


def test_the_imbalance_of_the_readme() -> None:
    assert imbalanced([1, 2, 20])
    assert picks(knowing(p3=(1,)), ask(blocks=(1,)), pods(1, 2, 20)) == {1}


@pytest.mark.parametrize("counts", [[0, 7, 0, 0], [*[2] * 9, 9], [10, 18, 10], [2, 2, 2, 10], [5]])
def test_a_small_gap_or_a_small_excess_is_no_imbalance(counts: list[int]) -> None:
    assert not imbalanced(counts)


def test_a_gap_of_eight_is_enough() -> None:
    assert imbalanced([0, 0, 0, 8])


def test_a_longer_match_is_taken_though_another_has_fewer_requests() -> None:
    rule = knowing(p1=(1, 2), p2=(1, 2, 3))
    assert picks(rule, ask(blocks=(1, 2, 3)), pods(0, 3, 3, 3)) == {2}


def test_the_limit_is_the_mean_and_so_many_standard_deviations() -> None:
    assert allowed_requests([0, 2, 1, 2], 1.0) == pytest.approx(1.25 + 0.8292, abs=1e-4)
    assert allowed_requests([0, 2, 1, 2], 0.0) == 1.25


def test_a_prefix_is_forgotten_after_twenty_minutes() -> None:
    rule = AIBrix()
    go(rule, ask(1, blocks=(1,)), pods(0))
    assert picks(rule, ask(2, blocks=(1,), now_s=1200.0), pods(0, 0)) == {1}
    assert picks(rule, ask(3, blocks=(1,), now_s=1201.0), pods(0, 0)) == {1, 2}
