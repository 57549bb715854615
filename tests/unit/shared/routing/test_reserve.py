"""Reservations: seen by the next decision, given back once."""

from firstlight.shared.routing.reserve import Reservations


def test_what_is_reserved_is_counted_until_it_is_given_back() -> None:
    reserved = Reservations()
    one, other = reserved.reserve("a", 100), reserved.reserve("a", 20)
    reserved.reserve("b", 5)
    assert reserved.by_core() == {"a": (2, 120), "b": (1, 5)}
    one.give_back()
    one.give_back()
    assert reserved.by_core() == {"a": (1, 20), "b": (1, 5)}
    other.give_back()
    assert "a" not in reserved.by_core()
