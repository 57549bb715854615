"""Cores that fail in a row are ejected for a while: one of a few, at most a third of many."""

import pytest

from firstlight.shared.routing.ejection import PROBE_S, Ejection


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
    ejection.success("a", 0.0)
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
        ejection.success("a", 0.0)
    assert _fail(ejection, "a", 1, now=100)
    for _ in range(10):
        ejection.success("a", 0.0)
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


def test_a_core_that_is_proven_to_lose_requests_is_out_at_once_and_longer_each_time() -> None:
    ejection = Ejection()
    assert ejection.failure("a", cores=2, now=0, proven=True)
    assert ejection.ejected("a", 29.9)
    ejection.asked("a", 30)
    assert ejection.failure("a", cores=2, now=31, proven=True)
    assert ejection.ejected("a", 90.9)
    assert not ejection.ejected("a", 91)


def test_a_core_in_doubt_is_tried_by_one_request_at_a_time() -> None:
    ejection = Ejection()
    ejection.failure("a", cores=2, now=0, proven=True)
    ejection.asked("a", 29)  # all others were worse
    assert not ejection.ejected("a", 30)
    ejection.asked("a", 30)
    assert ejection.ejected("a", 30.1)
    assert not ejection.ejected("a", 30 + PROBE_S), "nobody knows what became of it"
    ejection.asked("a", 30 + PROBE_S)
    ejection.success("a", 30 + PROBE_S)
    assert not ejection.ejected("a", 30 + PROBE_S)
    ejection.asked("a", 40)
    assert not ejection.ejected("a", 40), "it is in doubt no more"


def test_a_core_that_refuses_although_it_has_room_is_hit_five_times_in_half_a_minute() -> None:
    ejection, hits = Ejection(), []
    for tick in range(300):  # a request each 100 ms, answered 20 ms later
        now = tick / 10
        if not ejection.ejected("a", now):
            ejection.asked("a", now)
            ejection.refused("a", now + 0.02, has_room=True)
            hits.append(now)
    assert hits == [0.0, 1.1, 3.2, 7.3, 15.4]


def test_refusals_that_were_on_their_way_together_count_once() -> None:
    ejection = Ejection()
    for _ in range(20):
        ejection.refused("a", 0.0, has_room=True)
    assert ejection.ejected("a", 0.9)
    assert not ejection.ejected("a", 1.0)


def test_a_core_that_serves_between_refusals_is_never_out_for_longer_than_a_second() -> None:
    ejection = Ejection()
    for number in range(20):
        ejection.refused("a", 2.0 * number, has_room=True)
        assert not ejection.ejected("a", 2.0 * number + 1)
        ejection.success("a", 2.0 * number + 1)


def _serve(ejection: Ejection, cores: int, *, bad: str, every: int, requests: int = 200) -> bool:
    """Whether `bad`, which fails each `every`-th request, is ejected on the way."""
    ejected = False
    for number in range(requests):
        now = number / 10
        for core in (f"c{n}" for n in range(cores)):
            if core == bad and number % every == every - 1:
                ejected = ejection.failure(core, cores=cores, now=now) or ejected
            elif not ejection.ejected(core, now):
                ejection.success(core, now)
    return ejected


def test_a_core_that_fails_far_more_often_than_the_others_is_ejected_by_its_share() -> None:
    assert _serve(Ejection(), 6, bad="c3", every=3)


@pytest.mark.parametrize(("cores", "every"), [(4, 3), (6, 30)])
def test_of_too_few_cores_or_for_a_rare_failure_none_is_ejected_by_its_share(
    cores: int, every: int
) -> None:
    assert not _serve(Ejection(), cores, bad="c3", every=every)


def test_a_core_that_all_others_are_as_bad_as_stays() -> None:
    ejection = Ejection()
    for number in range(200):
        for core in range(6):
            if number % 3:
                ejection.success(f"c{core}", number / 10)
            else:
                assert not ejection.failure(f"c{core}", cores=6, now=number / 10)


def test_after_an_ejection_a_core_grows_from_a_tenth_of_its_room_to_all_of_it() -> None:
    ejection = Ejection()
    _fail(ejection, "a", 5, now=0)
    assert ejection.marks(10)["a"].ejected
    assert [ejection.marks(at)["a"].grown for at in (30, 45)] == [0.1, 0.5]
    assert ejection.marks(60) == {}


def test_only_those_against_whom_something_is_held_are_marked() -> None:
    ejection = Ejection()
    ejection.success("good", 0)
    ejection.refused("full", 0)
    assert ejection.marks(0).keys() == {"full"}
    assert ejection.marks(0)["full"].penalty_ms == 200
    assert ejection.marks(60) == {}
