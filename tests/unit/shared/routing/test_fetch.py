"""Recompute, fetch, or both at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.shared.routing.fetch import Plan, Source, Way, plan_prefix

MS = st.floats(0.01, 1e4)


def test_a_fast_link_fetches_and_computes_nothing() -> None:
    plan = plan_prefix(128, 100.0, Source(wait_ms=5.0, block_ms=6.0))
    assert plan.way is Way.FETCH
    assert plan.ms == 5.0 + 128 * 6.0


def test_a_link_as_slow_as_computing_halves_the_time_by_doing_both() -> None:
    plan = plan_prefix(100, 100.0, Source(wait_ms=0.0, block_ms=100.0))
    assert (plan.way, plan.ms) == (Way.SPLIT, 5000.0)


def test_a_link_that_saves_less_than_a_tenth_is_left_alone() -> None:
    plan = plan_prefix(100, 100.0, Source(wait_ms=0.0, block_ms=1000.0))
    assert (plan.way, plan.ms) == (Way.RECOMPUTE, 10_000.0)


def test_a_few_milliseconds_are_not_worth_a_fetch() -> None:
    assert plan_prefix(4, 4.0, Source(wait_ms=0.0, block_ms=0.1)).way is Way.RECOMPUTE


def test_a_bandwidth_that_nobody_measured_is_hedged_by_computing() -> None:
    plan = plan_prefix(128, 100.0, Source(wait_ms=5.0, block_ms=6.0, measured=False))
    assert plan.way is Way.SPLIT


def test_a_round_trip_longer_than_computing_is_not_waited_for() -> None:
    assert plan_prefix(10, 10.0, Source(wait_ms=150.0, block_ms=0.1)).way is Way.RECOMPUTE


@given(st.integers(1, 4096), MS, MS, MS)
def test_both_at_once_is_never_slower_than_the_better_of_the_two(
    blocks: int, compute_ms: float, wait_ms: float, block_ms: float
) -> None:
    plan = plan_prefix(blocks, compute_ms, Source(wait_ms, block_ms, measured=False))
    recompute, fetch = blocks * compute_ms, wait_ms + blocks * block_ms
    assert plan.ms <= recompute * (1 + 1e-9)
    if plan.way is Way.SPLIT:
        assert plan.ms <= min(recompute, fetch) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("ways", "way"),
    [
        ((Way.FETCH,), Way.FETCH),
        ((Way.SPLIT,), Way.SPLIT),
        ((Way.RECOMPUTE,), Way.RECOMPUTE),
        ((Way.FETCH, Way.SPLIT), Way.SPLIT),
    ],
)
def test_what_is_forbidden_is_not_done_however_slow_the_rest_is(
    ways: tuple[Way, ...], way: Way
) -> None:
    slow, fast = Source(wait_ms=0.0, block_ms=1000.0), Source(wait_ms=5.0, block_ms=6.0)
    assert plan_prefix(100, 100.0, slow, ways).way is way
    assert plan_prefix(100, 100.0, fast, (way,)).way is way


def test_without_both_at_once_the_better_of_the_two_is_done() -> None:
    ways = (Way.RECOMPUTE, Way.FETCH)
    better, worse = Source(wait_ms=0.0, block_ms=80.0), Source(wait_ms=0.0, block_ms=95.0)
    assert plan_prefix(100, 100.0, better, ways) == Plan(
        Way.FETCH, 8000.0, "100 blocks: recompute 10000 ms, fetch 8000, split 4444"
    )
    assert plan_prefix(100, 100.0, worse, ways).way is Way.RECOMPUTE
