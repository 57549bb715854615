"""The step-time table: measured, interpolated, and never cheaper for more rows."""

import pytest

from firstlight.shared.drafting.steptimes import StepTimes


def test_a_measured_bucket_is_returned_as_measured():
    times = StepTimes()
    times.observe(4, 47.0)
    assert times.ms(4) == 47.0
    assert times.table == ((4, 47.0),)


def test_between_buckets_it_interpolates():
    assert StepTimes(((4, 40.0), (8, 80.0))).ms(6) == pytest.approx(60.0)


def test_more_rows_are_never_expected_to_be_faster():
    times = StepTimes(((1, 36.0), (2, 30.0), (8, 77.0)))
    expected = [times.ms(rows) for rows in range(1, 200)]
    assert expected == sorted(expected)


def test_averages_age_and_an_outlier_counts_little():
    times = StepTimes()
    for _ in range(50):
        times.observe(1, 20.0)
    times.observe(1, 5000.0)
    assert times.ms(1) < 25.0
    for _ in range(100):
        times.observe(1, 40.0)
    assert times.ms(1) == pytest.approx(40.0, rel=0.01)


def test_before_any_measurement_there_is_a_guess_that_grows():
    assert 0 < StepTimes().ms(1) < StepTimes().ms(8)


def test_where_rows_cost_nothing_so_far_little_is_expected_of_more_of_them():
    flat, steep = StepTimes(((1, 25.0), (3, 25.0))), StepTimes(((1, 25.0), (3, 31.0)))
    assert 25.0 < flat.ms(4) < 26.0
    assert steep.ms(4) == pytest.approx(31.0 * 1.36 / 1.24)
    assert StepTimes(((1, 25.0), (3, 90.0))).ms(4) < 90.0 * 1.36 / 1.24 + 1e-9


def test_prefill_time_is_what_decodes_do_not_explain():
    times = StepTimes(((2, 30.0),))
    times.observe_prefill(10, 55, 2, 80.0)
    assert times.prefill.ms_per_token == pytest.approx(5.0)


def test_prefill_counts_a_little_even_where_decodes_explain_it_all():
    times = StepTimes(((2, 30.0),))
    times.observe_prefill(10, 55, 2, 20.0)
    assert times.prefill.ms_per_token == pytest.approx(0.2)


def test_what_is_measured_after_a_reading_counts_in_the_next():
    times = StepTimes()
    times.observe(4, 10.0)
    assert (times.ms(4), times.table) == (10.0, ((4, 10.0),))
    times.observe_each(8, (12.0, 12.0))
    assert (times.ms(8), times.table) == (12.0, ((4, 10.0), (8, 12.0)))
