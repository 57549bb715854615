"""The expected time to a first token: measured steps, prefill, and credit for a prefix."""

import pytest

from firstlight.shared.routing.cost import CoreState, known_prefill_ms, step_ms, ttft_ms
from firstlight.shared.types import Load

TABLE = ((1, 20.0), (2, 24.0), (4, 40.0))


@pytest.mark.parametrize(
    ("rows", "expected"), [(0, 20), (1, 20), (2, 24), (3, 32), (4, 40), (5, 48), (8, 72)]
)
def test_a_step_is_linear_between_measured_rows_and_beyond(rows: int, expected: float) -> None:
    assert step_ms(TABLE, rows) == expected


def test_a_step_of_which_nothing_is_known_adds_nothing() -> None:
    assert step_ms((), 5) == 0
    assert step_ms(((3, 9.0),), 5) == 9


def test_a_step_never_gets_cheaper_beyond_what_was_measured() -> None:
    assert step_ms(((1, 20.0), (2, 15.0)), 100) == 15


def test_the_estimate_is_the_sum_of_its_parts() -> None:
    load = Load(
        running=1,
        queued=1,
        queued_prefill_tokens=100,
        sequences_max=8,
        step_ms=TABLE,
        prefill_ms_per_token=2.0,
    )
    state = CoreState(
        "c",
        "r",
        load,
        rtt_ms=7,
        unseen_opens=1,
        unseen_prompt_tokens=50,
        prefix_tokens=30,
        penalty_ms=3,
    )
    expected = 7 + (100 + 50) * 2 + (200 - 30) * 2 + 40 + 3
    assert ttft_ms(state, prompt_tokens=200, mean_load=1.0) == expected


def test_at_least_one_prompt_token_is_always_computed() -> None:
    state = CoreState("c", "r", Load(prefill_ms_per_token=2.0), rtt_ms=0, prefix_tokens=500)
    assert ttft_ms(state, prompt_tokens=100, mean_load=1) == 2


def test_the_credit_for_a_prefix_fades_as_the_load_exceeds_the_others() -> None:
    load = Load(running=4, sequences_max=8, prefill_ms_per_token=1.0)
    state = CoreState("c", "r", load, rtt_ms=0, prefix_tokens=80)
    assert ttft_ms(state, prompt_tokens=100, mean_load=0.5) == 20
    assert ttft_ms(state, prompt_tokens=100, mean_load=0.25) == 60


def test_ends_that_the_core_has_not_told_yet_count_too() -> None:
    state = CoreState("c", "r", Load(running=3, sequences_max=4), rtt_ms=0, unseen_opens=-2)
    assert (state.rif, state.load_share, state.full) == (1, 0.25, False)


def test_a_core_that_measured_nothing_is_taken_to_be_as_fast_as_the_median() -> None:
    loads = [Load(prefill_ms_per_token=ms) for ms in (0.0, 1.0, 5.0, 9.0)]
    states = [CoreState(f"c{i}", "r", load, rtt_ms=0) for i, load in enumerate(loads)]
    assert known_prefill_ms(states) == 5
    assert ttft_ms(states[0], prompt_tokens=10, prefill_prior_ms=5) == 50
