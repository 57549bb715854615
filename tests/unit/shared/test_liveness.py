"""When a link or an engine is lost, and when silence is our own pause or idleness."""

from firstlight.shared.liveness import Liveness, Lost, Verdict
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


def test_an_engine_that_hangs_while_its_process_lives_is_lost_after_three_seconds() -> None:
    found = _lost_at(BUSY, until=10)
    assert found is not None
    assert found[0] == 3.25
    assert found[1] == Verdict(Lost.STUCK, "step 7 for 3.0 s with 2 running and 1 queued")


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
    for tick in range(41, 53):
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
