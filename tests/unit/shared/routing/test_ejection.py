"""Cores that fail in a row are ejected for a while: one of a few, at most a third of many."""

import pytest

from firstlight.shared.routing.ejection import Ejection


def _fail(ejection: Ejection, core: str, times: int, *, now: float, cores: int = 10) -> bool:
    return [ejection.failure(core, cores=cores, now=now) for _ in range(times)][-1]


def test_five_failures_in_a_row_eject_a_core_for_half_a_minute() -> None:
    ejection = Ejection()
    assert not _fail(ejection, "a", 4, now=0)
    assert _fail(ejection, "a", 1, now=0)
    assert ejection.ejected("a", 29.9)
    assert not ejection.ejected("a", 30)


def test_a_success_between_them_starts_the_count_anew() -> None:
    ejection = Ejection()
    _fail(ejection, "a", 4, now=0)
    ejection.success("a")
    assert not _fail(ejection, "a", 4, now=0)


def test_a_core_that_fails_again_is_out_at_once_and_longer_up_to_five_minutes() -> None:
    ejection, now, spans = Ejection(), 0.0, []
    _fail(ejection, "a", 5, now=now)
    for times in range(2, 14):
        now += 400
        assert _fail(ejection, "a", 1, now=now)
        spans.append(next(s for s in range(0, 400, 10) if not ejection.ejected("a", now + s)))
        assert spans[-1] == min(300, 30 * times)


def test_ten_successes_clear_the_record() -> None:
    ejection = Ejection()
    _fail(ejection, "a", 5, now=0)
    for _ in range(9):
        ejection.success("a")
    assert _fail(ejection, "a", 1, now=100)
    for _ in range(10):
        ejection.success("a")
    assert not _fail(ejection, "a", 4, now=200)


@pytest.mark.parametrize(("cores", "out"), [(1, 1), (3, 1), (6, 2), (10, 3)])
def test_at_most_a_third_of_the_cores_are_out(cores: int, out: int) -> None:
    ejection = Ejection()
    names = [f"c{i}" for i in range(cores)]
    for name in names:
        _fail(ejection, name, 5, now=0, cores=cores)
    assert sum(ejection.ejected(name, 1) for name in names) == out


def test_refusals_never_eject_and_their_penalty_fades() -> None:
    ejection = Ejection()
    for _ in range(100):
        ejection.refused("a", now=0)
    assert not ejection.ejected("a", 0)
    assert ejection.penalty_ms("a", 2) == ejection.penalty_ms("a", 0) / 2
    assert ejection.penalty_ms("a", 60) < 0.1
    assert ejection.penalty_ms("b", 0) == 0
