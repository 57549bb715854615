"""What is made of timestamps, by hand-computed values."""

import pytest

from firstlight.infra.bench.engine.figures import (
    Timing,
    interference,
    prefix,
    repeats,
    single,
    streams,
)


def timing(sent_s: float, *events_s: float, tokens: int | None = None) -> Timing:
    return Timing(sent_s, events_s, len(events_s) if tokens is None else tokens)


def near(**figures: float | None) -> object:
    return pytest.approx(figures)


def test_a_single_stream_is_told_by_first_token_and_time_per_token() -> None:
    one = timing(1.0, 1.5, 1.6, 1.7)
    assert single(one) == near(ttft_ms=500.0, tpot_ms=100.0, tokens_per_s=10.0)


def test_tokens_are_counted_by_usage_and_not_by_events() -> None:
    """Two events that carried five tokens: four came after the first."""
    assert single(timing(0.0, 1.0, 1.4, tokens=5))["tpot_ms"] == pytest.approx(100.0)


@pytest.mark.parametrize("events", [(1.0,), (1.0, 1.0)])
def test_what_came_at_once_has_no_speed(events: tuple[float, ...]) -> None:
    told = single(timing(0.0, *events, tokens=4))
    assert told == near(ttft_ms=1000.0, tpot_ms=None, tokens_per_s=None)


def test_streams_together_are_told_by_the_wall_and_all_their_gaps() -> None:
    told = streams([timing(0.0, 1.0, 1.2), timing(0.5, 2.0, 2.5)])
    assert told == near(
        ttft_ms=1250.0,
        ttft_p95_ms=1000 + 0.95 * 500,
        tpot_ms=350.0,
        tokens_per_s=4 / 2.5,
        gap_p99_ms=200 + 0.99 * 300,
    )


def test_no_stream_has_no_figures() -> None:
    assert streams([]) == {}


def test_the_window_of_a_long_prompt_has_every_gap_that_is_partly_in_it() -> None:
    """Sent at 2.05, first text at 3.0. Gaps end before it, lap into it, and begin after it."""
    other = timing(0.0, 1.0, 1.1, 1.3, 2.0, 2.1, 2.9, 3.1, 3.9)
    told = interference([other], timing(2.05, 3.0, 3.5))
    assert told["ttft_ms"] == pytest.approx(950.0)
    assert told["gap_p50_before_ms"] == pytest.approx(200.0)  # of 100, 200, 700
    assert told["gap_max_ms"] == pytest.approx(800.0)  # of 100, 800, 200
    assert told["gap_p99_ms"] == pytest.approx(200 + 0.98 * 600)
    assert told["tpot_ms"] == pytest.approx(2900 / 7)
    assert told["tokens_per_s"] == pytest.approx(10 / 3.9)


def test_gaps_before_count_from_when_all_streams_decode() -> None:
    early = timing(0.0, 0.1, 0.6, 1.1, 1.2)
    late = timing(0.0, 1.0, 1.3)
    told = interference([early, late], timing(1.4, 1.5))
    assert told["gap_p50_before_ms"] == pytest.approx(200.0)  # of 100 and 300: not the two of 500


def test_streams_that_were_over_have_no_gaps_in_the_window() -> None:
    told = interference([timing(0.0, 0.1, 0.2)], timing(1.0, 2.0, 2.5))
    assert (told["gap_max_ms"], told["gap_p99_ms"]) == (None, None)


def test_a_prefix_is_told_by_the_median_of_its_hits() -> None:
    hits = [timing(0.0, first, first + 0.1) for first in (0.3, 0.1, 0.2)]
    told = prefix(timing(0.0, 2.0, 2.1), hits)
    assert told == near(cold_ms=2000.0, ttft_ms=200.0, tpot_ms=100.0, tokens_per_s=10.0)


def test_repeats_are_told_by_medians_of_what_is_there() -> None:
    runs = [{"a": 1.0, "b": None}, {"a": 3.0}, {"a": 2.0, "b": 4.0}]
    assert repeats(runs) == {"a": 2.0, "b": 4.0}
    assert repeats([{"a": None}]) == {"a": None}
