"""When a link, an engine or a request is lost, and when silence is our own pause or idleness."""

from firstlight.shared.liveness import (
    FORGOTTEN_FRAMES,
    FORGOTTEN_S,
    Account,
    Liveness,
    Lost,
    Verdict,
)
from firstlight.shared.types import Load

BUSY = Load(running=2, queued=1, sequences_max=4, steps=7, step_ms=((1, 25.0), (4, 60.0)))


def _lost_at(
    load: Load | None, *, until: float, frames_until: float = 1e9, from_now: float = 0.0
) -> tuple[float, Verdict] | None:
    """Checks every 250 ms, with a frame before each."""
    watch, ticks = Liveness(from_now), int(until * 4)
    for tick in range(1, ticks + 1):
        now = from_now + tick / 4
        if now <= frames_until:
            watch.frame(load, now)
        verdict = watch.check(now)
        if verdict:
            return now, verdict
    return None


def test_a_silent_link_is_lost_after_a_second_and_a_half() -> None:
    found = _lost_at(BUSY, until=10, frames_until=1.0)
    assert found is not None
    assert found[0] == 2.5
    assert found[1] == Verdict(Lost.SILENT, "no frame for 1.5 s")


def test_an_engine_that_hangs_while_its_process_lives_is_found_out_within_three_seconds() -> None:
    found = _lost_at(BUSY, until=10)
    assert found is not None
    assert found[0] == 2.75
    assert found[1] == Verdict(Lost.STUCK, "step 7 for 2.5 s with 2 running and 1 queued")


def test_slow_steps_lengthen_the_wait_for_progress() -> None:
    slow = Load(running=1, steps=7, step_ms=((1, 400.0), (4, 500.0)))
    found = _lost_at(slow, until=10)
    assert found is not None
    assert found[0] == 5.25


def test_an_idle_core_is_never_stuck() -> None:
    assert _lost_at(Load(steps=7), until=60) is None


def test_frames_without_a_load_keep_the_link_alive() -> None:
    assert _lost_at(None, until=60) is None


def test_a_core_that_was_idle_has_the_whole_time_from_its_first_request() -> None:
    watch = Liveness(0.0)
    for tick in range(1, 41):
        watch.frame(Load(steps=7), tick / 4)
        assert watch.check(tick / 4) is None
    for tick in range(41, 51):
        watch.frame(BUSY, tick / 4)
        assert watch.check(tick / 4) is None


def test_a_core_whose_steps_move_is_never_lost() -> None:
    watch = Liveness(0.0)
    for tick in range(1, 200):
        watch.frame(Load(running=1, steps=tick // 10), tick / 4)
        assert watch.check(tick / 4) is None


def test_our_own_pause_is_not_the_cores() -> None:
    watch = Liveness(0.0)
    watch.frame(BUSY, 0.2)
    assert watch.check(0.25) is None
    assert watch.check(5.25) is None
    assert watch.check(5.5) is None
    verdict = [watch.check(5.5 + tick / 4) for tick in range(1, 8)]
    assert any(item is not None and item.lost is Lost.SILENT for item in verdict)


def _account(*requests: str) -> Account:
    account = Account()
    for request in requests:
        account.opened(request)
    return account


def _says(account: Account, load: Load, *, until: float, since: float = 0.0) -> float | None:
    """A frame each 200 ms; when the core is found out."""
    for tick in range(int((until - since) * 5) + 1):
        account.frame(load, since + tick / 5, whole=True)
        if account.check():
            return since + tick / 5
    return None


def test_a_core_that_counted_our_opens_and_is_idle_for_a_second_has_lost_them() -> None:
    account = _account("a", "b")
    assert _says(account, Load(opens_counted=2), until=10) == FORGOTTEN_S
    reason = "for 1.0 s it has known nothing of 2 requests"
    assert account.check() == Verdict(Lost.FORGOTTEN, reason)


def test_one_of_many_that_is_nowhere_is_missed_while_the_others_run() -> None:
    account = _account("a", "b", "c")
    assert _says(account, Load(running=1, queued=1, opens_counted=3), until=10) == FORGOTTEN_S


def test_an_open_that_the_core_has_not_read_yet_is_not_missed() -> None:
    account = _account("a", "b")
    assert _says(account, Load(running=1, opens_counted=1), until=60) is None
    assert not account.suspect


def test_requests_that_wait_at_the_core_are_not_missed_however_long_they_do() -> None:
    assert _says(_account("a", "b"), Load(queued=2, opens_counted=2), until=600) is None


def test_requests_of_other_edges_hide_one_that_is_missed_until_they_end() -> None:
    account = _account("a")
    assert _says(account, Load(running=1, opens_counted=1), until=5) is None
    assert _says(account, Load(opens_counted=1), since=5, until=10) == 5 + FORGOTTEN_S


def test_nothing_is_missed_of_requests_that_ended_or_were_cancelled() -> None:
    account = _account("a", "b")
    account.ended("a")
    account.ended("b")
    assert _says(account, Load(opens_counted=2), until=10) is None


def test_a_load_that_is_a_frame_ahead_of_the_ending_strikes_nobody() -> None:
    account = Account()
    for number in range(50):
        account.opened("r")
        account.frame(Load(opens_counted=number + 1), number, whole=True)
        assert not account.suspect
        account.ended("r")
        account.frame(Load(opens_counted=number + 1), number + 0.5, whole=True)
    assert account.check() is None


def test_a_frame_that_may_have_left_something_behind_begins_the_count_anew() -> None:
    account, idle = _account("a"), Load(opens_counted=1)
    for tick in range(200):
        account.frame(idle, tick / 5, whole=tick % 4 != 0)
        assert account.check() is None


def test_many_frames_at_once_after_a_pause_of_ours_are_no_second() -> None:
    account, idle = _account("a"), Load(opens_counted=1)
    account.frame(idle, 0.0, whole=True)
    for _ in range(FORGOTTEN_FRAMES - 2):
        account.frame(idle, 5.0, whole=True)
    assert account.check() is None
    account.ended("a")  # what the pause had held up
    account.frame(idle, 5.0, whole=True)
    assert account.check() is None
    assert not account.suspect


def test_a_core_is_suspect_long_before_it_is_found_out() -> None:
    account, idle = _account("a"), Load(opens_counted=1)
    account.frame(idle, 0.0, whole=True)
    assert not account.suspect
    account.frame(idle, 0.2, whole=True)
    assert account.suspect
    assert account.check() is None


def test_a_request_that_came_back_to_the_same_link_is_due_from_its_latest_open() -> None:
    account = _account("a", "a")
    assert _says(account, Load(opens_counted=1), until=10) is None
    assert _says(account, Load(opens_counted=2), until=10) == FORGOTTEN_S
