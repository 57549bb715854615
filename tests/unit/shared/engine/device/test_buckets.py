"""The shapes of steps: few, and each holds what it is chosen for."""

from random import Random

import pytest

from firstlight.shared.engine.device.buckets import (
    CAPTURED_MAX,
    CAPTURED_ROWS_MAX,
    SPAN_ROWS,
    Bucket,
    Limits,
    captured,
)

LIMITS = Limits(rows=512, sequences=64, context=8000)


def test_a_step_runs_as_the_next_power_of_two_rows_and_pieces():
    assert LIMITS.bucket(5, 300) == Bucket(rows=8, sequences=8, context=512)
    assert LIMITS.bucket(65, 256) == Bucket(rows=128, sequences=64, context=256)
    assert LIMITS.bucket(1, 1) == Bucket(rows=1, sequences=1, context=256)


def test_no_shape_is_beyond_the_limits():
    assert Limits(rows=40, sequences=4, context=100).largest == Bucket(40, 4, 100)
    assert LIMITS.largest == Bucket(512, 64, 8000)
    assert LIMITS.largest.table == 500


def test_spans_of_any_step_fit_its_shape():
    random = Random(4)
    for _ in range(2000):
        rows = random.randint(1, 512)
        sequences = random.randint(1, min(rows, 64))
        cuts = sorted(random.sample(range(1, rows), sequences - 1))
        counts = [b - a for a, b in zip([0, *cuts], [*cuts, rows], strict=True)]
        spans = sum(-(-count // SPAN_ROWS) for count in counts)
        assert spans <= LIMITS.bucket(rows, 1).spans


@pytest.mark.parametrize(("rows", "context"), [(513, 1), (0, 1), (1, 8001), (1, 0)])
def test_a_step_beyond_the_limits_is_refused(rows, context):
    with pytest.raises(ValueError, match="expected at most 512 and 8000"):
        LIMITS.bucket(rows, context)


def test_there_are_few_shapes_and_fewer_that_are_captured():
    shapes = {
        LIMITS.bucket(rows, context) for rows in range(1, 513) for context in range(1, 8001, 7)
    }
    assert len(shapes) == 10 * 6
    assert not captured(Bucket(512, 64, 256), 0)
    assert captured(Bucket(CAPTURED_ROWS_MAX, 64, 256), CAPTURED_MAX - 1)
    assert not captured(Bucket(1, 1, 256), CAPTURED_MAX)


def test_shapes_that_are_launched_first_have_all_rows_and_reaches_and_the_largest_comes_first():
    limits = Limits(rows=600, sequences=64, context=1000)
    various = limits.various
    assert various[:2] == [Bucket(CAPTURED_ROWS_MAX, 64, 1000), limits.largest]
    assert len(set(various)) == len(various)
    every = {limits.bucket(rows, context) for rows in range(1, 601) for context in range(1, 1001)}
    assert set(various) <= every
    assert {one.rows for one in various} == {one.rows for one in every}
    assert {one.context for one in various if one.rows == 1} == {one.context for one in every}
    assert Limits(1, 1, 1).various == [Bucket(1, 1, 1)]
