"""The lowest cost wins, ties by lot; a load is what the decider can know of it."""

from math import inf, nan
from random import Random

import pytest
from policy_bed import seen

from firstlight.infra.sim.policies.lowest import in_flight, lowest


@pytest.mark.parametrize(
    ("costs", "where"), [([3.0, 1.0, 2.0], 1), ([nan, 5.0], 1), ([5.0, nan], 0), ([inf, nan], 0)]
)
def test_the_lowest_cost_wins_and_nan_loses_to_all(costs: list[float], where: int) -> None:
    assert lowest(costs, Random(0)) == where


def test_ties_go_to_each_alike() -> None:
    rng = Random(3)
    lots = [lowest([2.0, 1.0, 1.0, 1.0], rng) for _ in range(900)]
    assert {lots.count(index) // 100 for index in (1, 2, 3)} <= {2, 3}
    assert 0 not in lots


def test_any_will_do_if_no_cost_is_a_number() -> None:
    assert {lowest([nan, nan], Random(seed)) for seed in range(32)} == {0, 1}


def test_a_server_has_what_it_said_or_what_was_sent_there_if_that_is_more() -> None:
    assert in_flight(seen(0, waiting=2, running=3, own_in_flight=4)) == 5
    assert in_flight(seen(0, waiting=2, running=3, own_in_flight=4, unseen_opens=2)) == 7
    assert in_flight(seen(0, waiting=0, running=3, own_in_flight=4)) == 4


def test_nobody_has_less_than_no_request() -> None:
    assert in_flight(seen(0, waiting=-2, running=-3, own_in_flight=-4)) == 0
