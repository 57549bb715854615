"""When a server is asked."""

from firstlight.shared.breaker import Breaker


def test_it_is_open_until_a_probe_succeeds() -> None:
    breaker = Breaker(10.0)
    assert (breaker.open, breaker.probe_at) == (True, 10.0)
    assert breaker.succeeded()
    assert not breaker.open
    assert not breaker.succeeded()


def test_a_failure_opens_it_and_only_the_first_is_news() -> None:
    breaker = Breaker(0.0)
    breaker.succeeded()
    assert breaker.failed(5.0)
    assert breaker.open
    assert not breaker.failed(5.0)
    assert not breaker.failed(6.0)


def test_probes_come_after_one_second_and_then_ever_later() -> None:
    breaker, now, waits = Breaker(0.0), 0.0, []
    breaker.succeeded()
    for _ in range(6):
        breaker.failed(now)
        waits.append(breaker.probe_at - now)
        now = breaker.probe_at
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_calls_that_were_on_their_way_when_it_opened_put_off_no_probe() -> None:
    breaker = Breaker(0.0)
    breaker.succeeded()
    breaker.failed(0.0)
    breaker.failed(0.5)
    assert breaker.probe_at == 1.0


def test_after_a_success_it_begins_with_one_second_again() -> None:
    breaker = Breaker(0.0)
    for now in (0.0, 1.0, 3.0):
        breaker.failed(now)
    breaker.succeeded()
    assert breaker.failed(100.0)
    assert breaker.probe_at == 101.0


def test_while_it_is_open_only_a_probe_is_allowed() -> None:
    breaker = Breaker(0.0)
    assert breaker.allows(0.0)
    breaker.failed(0.0)
    assert [breaker.allows(now) for now in (0.0, 0.9, 1.0)] == [False, False, True]
    breaker.succeeded()
    assert breaker.allows(1.0)
