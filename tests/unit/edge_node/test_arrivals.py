"""Work that arrives: averages of ten seconds, refused work included."""

import pytest
from doubles import request

from firstlight.edge_node.arrivals import ANSWER_TOKENS_PRIOR, WINDOW_S, Arrivals
from firstlight.shared.errors import CapacityError, PeerError
from firstlight.shared.types import Demand

PROMPT = range(100)


def steady(arrivals: Arrivals, *, since: float, for_s: int) -> None:
    """Two requests a second."""
    for tick in range(2 * for_s):
        arrivals.arrived([request(prompt=PROMPT, max_tokens=50)], since + tick / 2)


def test_demand_is_the_average_of_the_last_ten_seconds() -> None:
    arrivals = Arrivals(0.0)
    steady(arrivals, since=0.0, for_s=30)
    demand = arrivals.demand(29.9, weight=4.0)
    assert demand.requests_per_s == pytest.approx(2.0, rel=0.1)
    assert demand.prompt_tokens_per_s == pytest.approx(200.0, rel=0.1)
    assert demand.work_per_s == pytest.approx(2 * (100 + 50 * 4), rel=0.1)


def test_a_young_edge_does_not_tell_too_little() -> None:
    arrivals = Arrivals(0.0)
    steady(arrivals, since=0.0, for_s=2)
    assert arrivals.demand(2.0, weight=0.0).work_per_s == pytest.approx(200.0)


def test_what_came_long_ago_is_forgotten() -> None:
    arrivals = Arrivals(0.0)
    steady(arrivals, since=0.0, for_s=5)
    arrivals.committed(7, 4.0)
    assert arrivals.demand(4.5 + WINDOW_S + 1.0, weight=1.0) == Demand()


def test_only_what_found_no_room_counts_as_refused() -> None:
    arrivals, one = Arrivals(0.0), request(prompt=PROMPT, max_tokens=50)
    arrivals.arrived([one, one, one], 5.0)
    arrivals.failed(one, CapacityError("full"), 5.5)
    arrivals.failed(one, PeerError("broke off"), 5.5)
    demand = arrivals.demand(10.0, weight=2.0)
    assert (demand.work_per_s, demand.refused_per_s) == (60.0, 20.0)


def test_an_answer_is_expected_to_be_as_long_as_those_that_ended_lately() -> None:
    arrivals, one = Arrivals(0.0), request(prompt=PROMPT, max_tokens=10_000)
    arrivals.arrived([one], 5.0)
    assert arrivals.demand(10.0, weight=10.0).work_per_s == 10 + ANSWER_TOKENS_PRIOR
    for _ in range(500):
        arrivals.answered(600)
    arrivals.arrived([one], 25.0)
    assert arrivals.demand(30.0, weight=10.0).work_per_s == pytest.approx(610, rel=0.01)


def test_no_more_is_expected_than_was_asked_for() -> None:
    arrivals = Arrivals(0.0)
    arrivals.arrived([request(prompt=PROMPT, max_tokens=5)], 5.0)
    assert arrivals.demand(10.0, weight=10.0).work_per_s == 15.0


def test_ids_that_cores_commit_are_counted() -> None:
    arrivals = Arrivals(0.0)
    for _ in range(20):
        arrivals.committed(4, 5.0)
    assert arrivals.demand(10.0, weight=1.0).output_tokens_per_s == 8.0


def test_reading_changes_nothing() -> None:
    arrivals = Arrivals(0.0)
    steady(arrivals, since=0.0, for_s=10)
    assert arrivals.demand(10.0, weight=1.0) == arrivals.demand(10.0, weight=1.0)
