"""What prompt tokens add to a step: two rates, fitted, and the chunk that fits a time."""

from random import Random

import pytest

from firstlight.shared.drafting.prefilltimes import PrefillTimes, pairs


def measured(token_ms: float, pair_ms: float, *, noise: float = 0.0, steps: int = 200):
    times, random = PrefillTimes(), Random(4)
    for _ in range(steps):
        tokens, position = random.choice((16, 48, 160, 256)), random.randrange(0, 4000, 16)
        looked_at = pairs(tokens, position)
        ms = (token_ms * tokens + pair_ms * looked_at) * random.uniform(1 - noise, 1 + noise)
        times.observe(tokens, looked_at, ms)
    return times


def test_a_chunk_looks_at_all_before_each_of_its_tokens():
    assert pairs(3, 10) == 11 + 12 + 13


def test_both_rates_are_found_through_noise():
    times = measured(1.2, 0.0007, noise=0.2)
    assert times.token_ms == pytest.approx(1.2, rel=0.2)
    assert times.pair_ms == pytest.approx(0.0007, rel=0.2)


@pytest.mark.parametrize("position", [0, 100, 3000])
@pytest.mark.parametrize("pair_ms", [0.0, 0.0007])
def test_the_tokens_that_fit_a_time_are_the_most_that_do(pair_ms, position):
    times = PrefillTimes(1.2, pair_ms)
    fit = times.tokens(54.0, position)
    assert times.ms(fit, pairs(fit, position)) <= 54.0 * 1.001
    assert times.ms(fit + 2, pairs(fit + 2, position)) > 54.0


def test_fewer_tokens_fit_further_on_in_a_prompt():
    times = measured(1.2, 0.0007)
    assert times.tokens(54.0, 3000) < times.tokens(54.0, 0) < times.tokens(100.0, 0)


def test_before_any_measurement_a_chunk_is_short():
    assert PrefillTimes().tokens(1.0, 0) == 64
    assert PrefillTimes().tokens(250.0, 4000) == 64
    assert PrefillTimes().ms_per_token == 0.0


def test_no_time_fits_no_token():
    assert PrefillTimes(1.0, 0.001).tokens(0.0, 5) == 0
    assert PrefillTimes(1.0, 0.001).tokens(-3.0, 5) == 0


def test_the_same_chunk_over_and_over_is_followed():
    times = PrefillTimes()
    for ms in (100.0, 200.0):
        for _ in range(100):
            times.observe(64, pairs(64, 0), ms)
        assert times.ms(64, pairs(64, 0)) == pytest.approx(ms, rel=0.02)


@pytest.mark.parametrize("seed", range(8))
def test_the_end_of_a_long_prompt_does_not_spoil_what_is_known_of_the_beginning(seed):
    times, random = measured(1.2, 0.0007), Random(seed)
    for step in range(200):
        looked_at = pairs(16, 2000 + 16 * step)
        times.observe(16, looked_at, (1.2 * 16 + 0.0007 * looked_at) * random.uniform(0.7, 1.6))
    true_ms = 1.2 * 128 + 0.0007 * pairs(128, 0)
    assert times.ms(128, pairs(128, 0)) == pytest.approx(true_ms, rel=0.35)


def test_chunks_all_alike_leave_the_split_open_and_a_few_others_settle_it():
    def true_ms(tokens, position):
        return 1.0 * tokens + 0.002 * pairs(tokens, position)

    times = PrefillTimes()
    for tokens, position, count in ((16, 3000, 200), (128, 0, 4)):
        for _ in range(count):
            times.observe(tokens, pairs(tokens, position), true_ms(tokens, position))
    for tokens, position in ((128, 0), (16, 3000)):
        found = times.ms(tokens, pairs(tokens, position))
        assert found == pytest.approx(true_ms(tokens, position), rel=0.1)


def test_a_machine_that_got_slower_is_noticed_in_some_steps():
    times = measured(1.0, 0.0005)
    for _ in range(12):
        times.observe(64, pairs(64, 500), 2 * (64 + 0.0005 * pairs(64, 500)))
    assert times.ms(64, pairs(64, 500)) > 1.6 * (64 + 0.0005 * pairs(64, 500))


def test_a_measurement_far_off_counts_little():
    times = measured(1.0, 0.0005)
    times.observe(16, pairs(16, 0), 50_000.0)
    assert times.ms(256, pairs(256, 0)) < 1.2 * (256 + 0.0005 * pairs(256, 0))


def test_rates_are_never_negative():
    times, random = PrefillTimes(), Random(9)
    for _ in range(500):
        tokens, position = random.choice((16, 256)), random.randrange(4000)
        times.observe(tokens, pairs(tokens, position), random.uniform(0.1, 300.0))
        assert times.token_ms > 0
        assert times.pair_ms >= 0


def test_the_time_a_token_is_that_of_long_chunks_rather_than_of_short_ones():
    times = PrefillTimes()
    for tokens, ms in ((3, 36.0), (256, 1024.0)):
        times.observe(tokens, pairs(tokens, 0), ms)
    assert 4.0 < times.ms_per_token < 4.3
