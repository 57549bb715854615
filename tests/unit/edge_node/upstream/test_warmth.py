"""When a link gets padding, and how much of it."""

import pytest

from firstlight.edge_node.upstream.warmth import (
    KIB,
    LOOK_MAX_S,
    LOOK_MIN_S,
    LOOK_S,
    LinksConfig,
    Warmth,
)
from firstlight.shared.errors import ConfigError

RTT_MS = 140.0
QUICK_MS, LATE_MS = 2 * RTT_MS, 3 * RTT_MS
PLENTY = LinksConfig(padding_bytes_per_s=1024 * KIB)


def pad(warmth: Warmth, took_ms: float, now: float) -> int:
    """One piece of padding and its answer; how large it was."""
    size = warmth.due(RTT_MS, now)
    if size:
        warmth.sent(size, now)
        warmth.answered(took_ms, RTT_MS, now)
    return size


def warmed(config: LinksConfig = PLENTY) -> Warmth:
    """A link whose whole window was found to hold, at 0 s."""
    warmth = Warmth(config, 0.0)
    while pad(warmth, QUICK_MS, 0.0):
        pass
    return warmth


def next_look_s(warmth: Warmth, after_s: float) -> float:
    """When it next asks for padding, to a tenth of a second."""
    return next(after_s + n / 10 for n in range(1, 2000) if warmth.due(RTT_MS, after_s + n / 10))


def test_a_new_link_is_warmed_by_doubling_pieces_up_to_the_window() -> None:
    warmth = Warmth(PLENTY, 0.0)
    sizes = [pad(warmth, QUICK_MS, 0.0) for _ in range(6)]
    assert sizes == [16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 0]


def test_a_first_warming_fits_into_the_budget_at_once() -> None:
    frugal = Warmth(LinksConfig(padding_bytes_per_s=1), 0.0)
    assert sum(pad(frugal, QUICK_MS, 0.0) for _ in range(6)) == 496 * KIB


def test_nothing_more_goes_out_before_the_last_piece_is_answered() -> None:
    warmth = Warmth(PLENTY, 0.0)
    warmth.sent(warmth.due(RTT_MS, 0.0), 0.0)
    assert warmth.due(RTT_MS, 100.0) == 0


def test_a_window_that_holds_is_looked_at_less_and_less_often() -> None:
    warmth, now, waits = warmed(), 0.0, []
    for _ in range(5):
        at = next_look_s(warmth, now)
        waits.append(round(at - now, 1))
        now = at
        assert pad(warmth, QUICK_MS, now) == 256 * KIB
    assert waits == [2 * LOOK_S, 4 * LOOK_S, LOOK_MAX_S, LOOK_MAX_S, LOOK_MAX_S]


def test_a_window_that_had_fallen_is_looked_at_more_often() -> None:
    warmth, now, waits = warmed(), 0.0, []
    for _ in range(6):
        at = next_look_s(warmth, now)
        waits.append(round(at - now, 1))
        now = at
        pad(warmth, LATE_MS, now)
        pad(warmth, QUICK_MS, now)
    assert waits == [16.0, 8.0, 4.0, 2.0, LOOK_MIN_S, LOOK_MIN_S]


def test_a_path_that_takes_no_more_in_one_flight_gets_half_of_it_from_then_on() -> None:
    warmth = Warmth(PLENTY, 0.0)
    sizes = [pad(warmth, LATE_MS if n >= 3 else QUICK_MS, 0.0) for n in range(5)]
    assert sizes == [16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 128 * KIB]
    assert next_look_s(warmth, 0.0) == LOOK_MAX_S
    assert [pad(warmth, QUICK_MS, n * LOOK_MAX_S) for n in (1, 2, 3)] == [64 * KIB] * 3


def test_one_late_answer_on_the_way_up_costs_one_more_piece_and_no_more() -> None:
    warmth = Warmth(PLENTY, 0.0)
    took = (QUICK_MS, LATE_MS, QUICK_MS, QUICK_MS, QUICK_MS)
    sizes = [pad(warmth, ms, 0.0) // KIB for ms in took]
    assert sizes == [16, 32, 32, 64, 128]


def test_what_something_else_cut_short_is_begun_again_later() -> None:
    warmth = Warmth(PLENTY, 0.0)
    warmth.sent(warmth.due(RTT_MS, 0.0) - 1, 0.0)
    assert warmth.due(RTT_MS, LOOK_MIN_S - 0.1) == 0
    assert warmth.due(RTT_MS, LOOK_MIN_S) == 16 * KIB


def test_padding_stays_within_its_budget() -> None:
    rate = 8 * KIB
    warmth, total = warmed(LinksConfig(padding_bytes_per_s=rate)), 0
    for tenth in range(6000):  # ten minutes in which every look finds the window fallen
        for took_ms in (LATE_MS, QUICK_MS):
            total += pad(warmth, took_ms, tenth / 10)
    assert 0 < total <= 512 * KIB + 600 * rate


def test_near_cores_get_no_padding() -> None:
    assert Warmth(PLENTY, 0.0).due(4.9, 0.0) == 0


def test_a_budget_of_zero_turns_padding_off() -> None:
    assert Warmth(LinksConfig(padding_bytes_per_s=0), 0.0).due(RTT_MS, 1e6) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("window_bytes", 1), ("window_bytes", 1 << 21), ("padding_bytes_per_s", -1)],
)
def test_a_setting_out_of_its_range_is_refused_by_its_name(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}, expected"):
        LinksConfig(**{name: value})
