"""Work and capacity in prefill-token equivalents."""

import pytest

from firstlight.shared.routing.work import (
    ANSWER_WEIGHT_PRIOR,
    answer_weight,
    capacity,
    typical_weight,
    work,
)
from firstlight.shared.types import Load

CORE = Load(sequences_max=8, prefill_ms_per_token=0.5, step_ms=((1, 10.0), (8, 16.0)))


def test_a_core_can_do_what_its_prefill_takes() -> None:
    assert capacity(CORE) == 2000.0


@pytest.mark.parametrize("ms", [0.0, -1.0, float("nan"), float("inf"), 1e-9, 1e9])
def test_a_core_that_measured_nothing_or_nonsense_has_no_capacity(ms: float) -> None:
    assert capacity(Load(prefill_ms_per_token=ms)) == 0.0


def test_an_answers_token_is_worth_its_part_of_a_step_with_all_places_taken() -> None:
    assert answer_weight(CORE) == 16.0 / 8 / 0.5


def test_how_much_runs_now_makes_no_difference() -> None:
    busy = Load(8, 9, 500, 8, step_ms=CORE.step_ms, prefill_ms_per_token=0.5)
    assert answer_weight(busy) == answer_weight(CORE)
    assert capacity(busy) == capacity(CORE)


def test_the_typical_weight_is_the_median_of_those_that_know() -> None:
    loads = [Load(), CORE, Load(sequences_max=1, prefill_ms_per_token=1.0, step_ms=((1, 20.0),))]
    assert typical_weight(loads) == 20.0
    assert typical_weight([Load()]) == ANSWER_WEIGHT_PRIOR


def test_work_is_what_is_not_cached_and_the_answer() -> None:
    assert work(100, 10, cached_tokens=64, weight=4.0) == 36 + 40
    assert work(100, 10, cached_tokens=100, weight=4.0) == 1 + 40
