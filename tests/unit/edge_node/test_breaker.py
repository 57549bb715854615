"""When a server that does not answer is left alone."""

from firstlight.edge_node.breaker import FAILURES_MAX, PAUSE_MAX_S, PAUSE_S, Breaker


def failed(count: int, now: float = 10.0) -> Breaker:
    breaker = Breaker()
    for _ in range(count):
        breaker.failed(now)
    return breaker


def test_a_few_failures_change_nothing() -> None:
    assert failed(FAILURES_MAX - 1).allows(10.0)


def test_after_more_of_them_it_is_left_alone_for_a_while() -> None:
    breaker = failed(FAILURES_MAX)
    assert not breaker.allows(10.0)
    assert not breaker.allows(10.0 + PAUSE_S - 0.01)
    assert breaker.allows(10.0 + PAUSE_S)


def test_each_failure_after_that_doubles_the_pause_up_to_a_limit() -> None:
    assert not failed(FAILURES_MAX + 1).allows(10.0 + 2 * PAUSE_S - 0.01)
    assert failed(FAILURES_MAX + 1).allows(10.0 + 2 * PAUSE_S)
    assert failed(FAILURES_MAX + 1000).allows(10.0 + PAUSE_MAX_S)


def test_one_success_counts_for_all_failures() -> None:
    breaker = failed(FAILURES_MAX - 1)
    breaker.succeeded()
    breaker.failed(10.0)
    assert breaker.allows(10.0)
