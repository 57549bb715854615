"""How often a request may move, what ends it, and what the budget of retries allows."""

from random import Random

import pytest

from firstlight.shared.retry import Attempts, RetryBudget, Why, full_jitter_s


def test_the_first_move_is_made_at_once() -> None:
    decision = Attempts().lost("c1", strike=None, now=0, rng=Random(1))
    assert (decision.go_on, decision.why, decision.wait_s) == (True, Why.MOVE, 0.0)


def test_a_request_moves_at_most_four_times_a_minute() -> None:
    attempts, rng = Attempts(), Random(1)
    for now in (0, 1, 2, 3):
        assert attempts.lost("c1", strike=None, now=now, rng=rng).go_on
    refused = attempts.lost("c1", strike=None, now=59.9, rng=rng)
    assert (refused.go_on, refused.why) == (False, Why.MOVES)
    assert attempts.lost("c1", strike=None, now=60, rng=rng).go_on
    assert attempts.moves == 5


def test_two_cores_that_die_before_their_first_token_make_poison() -> None:
    attempts, rng = Attempts(), Random(1)
    assert attempts.lost("c1", strike=("c1", 1), now=0, rng=rng).go_on
    decision = attempts.lost("c2", strike=("c2", 1), now=1, rng=rng)
    assert (decision.go_on, decision.why) == (False, Why.POISON)
    assert decision.reason == "c1 and c2 died before its first token there"


def test_cores_that_die_after_a_token_are_no_strike() -> None:
    attempts, rng = Attempts(), Random(1)
    assert attempts.lost("c1", strike=("c1", 1), now=0, rng=rng).go_on
    for minute in range(1, 10):
        attempts.committed()
        decision = attempts.lost("c2", strike=None, now=60 * minute, rng=rng)
        assert decision.go_on


def test_a_refusal_for_good_is_final() -> None:
    decision = Attempts().refused(
        "c1", retry_elsewhere=False, budget=RetryBudget(0), now=0, rng=Random(1)
    )
    assert (decision.go_on, decision.why) == (False, Why.FINAL)


def test_a_request_is_tried_three_times_in_a_row() -> None:
    attempts, budget, rng = Attempts(), RetryBudget(0), Random(1)

    def refused() -> Why:
        return attempts.refused("c1", retry_elsewhere=True, budget=budget, now=0, rng=rng).why

    assert [refused(), refused(), refused()] == [Why.RETRY, Why.RETRY, Why.TRIES]


def test_the_budget_gives_three_a_second_and_a_tenth_of_requests() -> None:
    budget = RetryBudget(0)
    assert sum(budget.take(0) for _ in range(10)) == 3
    assert sum(budget.take(1) for _ in range(10)) == 3
    for _ in range(100):
        budget.request(2)
    assert sum(budget.take(2) for _ in range(50)) == 13


def test_a_quiet_hour_buys_no_storm() -> None:
    budget = RetryBudget(0)
    for _ in range(10_000):
        budget.request(0)
    assert sum(budget.take(3600) for _ in range(5000)) == 3


def test_an_empty_budget_ends_a_request() -> None:
    budget = RetryBudget(0, per_s=0)
    decision = Attempts().refused("c", retry_elsewhere=True, budget=budget, now=0, rng=Random(1))
    assert (decision.go_on, decision.why) == (False, Why.BUDGET)


@pytest.mark.parametrize(("attempt", "limit_s"), [(0, 0.05), (1, 0.1), (3, 0.4), (90, 2.0)])
def test_waits_are_spread_over_all_of_their_limit(attempt: int, limit_s: float) -> None:
    rng = Random(7)
    waits = [full_jitter_s(attempt, rng) for _ in range(2000)]
    assert 0 <= min(waits) < 0.01 * limit_s
    assert 0.99 * limit_s < max(waits) <= limit_s


def test_a_core_that_is_heard_again_in_the_same_life_had_not_died() -> None:
    attempts, rng = Attempts(), Random(1)
    assert attempts.lost("c1", strike=("c1", 1), now=0, rng=rng).go_on
    living = {("c1", 1), ("c3", 1)}
    assert attempts.lost("c2", strike=("c2", 1), living=living, now=1, rng=rng).go_on
    decision = attempts.lost("c3", strike=("c3", 1), living={("c1", 1)}, now=2, rng=rng)
    assert (decision.go_on, decision.why) == (False, Why.POISON)


def test_a_core_that_was_started_again_has_died() -> None:
    attempts, rng = Attempts(), Random(1)
    assert attempts.lost("c1", strike=("c1", 1), now=0, rng=rng).go_on
    decision = attempts.lost("c2", strike=("c2", 1), living={("c1", 2)}, now=1, rng=rng)
    assert decision.why is Why.POISON


def test_silence_after_silence_is_no_poison_but_ends_after_four_moves() -> None:
    attempts, rng = Attempts(), Random(1)
    whys = [attempts.lost("c", strike=None, now=now, rng=rng).why for now in range(5)]
    assert whys == [Why.MOVE] * 4 + [Why.MOVES]


def test_a_life_that_is_struck_twice_had_not_died_the_first_time() -> None:
    attempts, rng = Attempts(), Random(1)
    assert attempts.lost("c1", strike=("c1", 1), now=0, rng=rng).go_on
    assert attempts.lost("c1", strike=("c1", 1), now=1, rng=rng).go_on
    decision = attempts.lost("c1", strike=("c1", 2), now=2, rng=rng)
    assert decision.why is Why.POISON
