"""The expected time to a first token: measured steps, prefill, and credit for a prefix."""

from dataclasses import replace

import pytest

from firstlight.shared.routing.cost import (
    CoreState,
    cost_of,
    known_prefill_ms,
    nonsense,
    step_ms,
)
from firstlight.shared.routing.fetch import Source
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
        penalty_ms=3,
    )
    expected = 7 + (100 + 50) * 2 + (200 - 30) * 2 + 40 + 3
    assert cost_of(state, prompt_tokens=200, prefix_tokens=30, mean_load=1.0).ms == expected


def test_at_least_one_prompt_token_is_always_computed() -> None:
    state = CoreState("c", "r", Load(prefill_ms_per_token=2.0), rtt_ms=0)
    assert cost_of(state, prompt_tokens=100, prefix_tokens=500, mean_load=1).ms == 2


def test_the_credit_for_a_prefix_fades_as_the_load_exceeds_the_others() -> None:
    load = Load(running=4, sequences_max=8, prefill_ms_per_token=1.0)
    state = CoreState("c", "r", load, rtt_ms=0)
    for mean, expected in ((0.5, 20), (0.25, 60)):
        cost = cost_of(state, prompt_tokens=100, prefix_tokens=80, mean_load=mean)
        assert cost.ms == expected


def test_ends_that_the_core_has_not_told_yet_count_too() -> None:
    state = CoreState("c", "r", Load(running=3, sequences_max=4), rtt_ms=0, unseen_opens=-2)
    assert (state.rif, state.load_share, state.full) == (1, 0.25, False)


def test_a_core_that_measured_nothing_is_taken_to_be_as_fast_as_the_median() -> None:
    loads = [Load(prefill_ms_per_token=ms) for ms in (0.0, 1.0, 5.0, 9.0)]
    states = [CoreState(f"c{i}", "r", load, rtt_ms=0) for i, load in enumerate(loads)]
    assert known_prefill_ms(states) == 5
    assert cost_of(states[0], prompt_tokens=10, prefill_prior_ms=5).ms == 50


def near(tokens: int, *, wait_ms: float, block_ms: float) -> CoreState:
    load = Load(prefill_ms_per_token=2.0)
    source = Source(wait_ms, block_ms)
    return CoreState("c", "r", load, rtt_ms=0, near_tokens=tokens, near=source)


def test_what_a_store_nearby_has_beyond_the_core_is_fetched_if_that_is_quicker() -> None:
    state = near(960, wait_ms=5.0, block_ms=0.5)  # 50 blocks: 1600 ms, or 5 + 25
    cost = cost_of(state, prompt_tokens=1000, prefix_tokens=160, mean_load=1.0)
    assert (cost.way, cost.prefill_ms) == ("fetch", 5.0 + 25.0 + 40 * 2.0)


def test_computing_from_the_front_while_the_back_comes_is_weighed_too() -> None:
    state = near(960, wait_ms=40.0, block_ms=32.0)  # 60 blocks of 32 ms either way
    cost = cost_of(state, prompt_tokens=960 + 40, mean_load=1.0)
    assert cost.way == "split"
    assert cost.prefill_ms == pytest.approx((40 + 60 * 32) / 64 * 32 + 40 * 2.0)


@pytest.mark.parametrize(
    ("held", "state"),
    [
        (0, near(960, wait_ms=5000.0, block_ms=500.0)),
        (960, near(960, wait_ms=1.0, block_ms=0.1)),
        (0, near(960, wait_ms=float("nan"), block_ms=0.1)),
        (0, near(960, wait_ms=-5000.0, block_ms=0.1)),
    ],
)
def test_a_store_that_is_slow_or_has_no_more_or_is_nonsense_is_not_asked(
    held: int, state: CoreState
) -> None:
    cost = cost_of(state, prompt_tokens=1000, prefix_tokens=held, mean_load=1.0)
    assert (cost.way, cost.prefill_ms) == ("recompute", (1000 - held) * 2.0)


def test_the_credit_of_a_hot_prefix_ends_at_a_quarter_above_the_mean() -> None:
    load = Load(running=5, sequences_max=8, prefill_ms_per_token=1.0)
    state = CoreState("c", "r", load, rtt_ms=0)
    for mean, expected in ((0.49, 100), (0.51, 100 - 80 / (1 + 4 * 0.115))):
        cost = cost_of(state, prompt_tokens=100, prefix_tokens=80, mean_load=mean, bounded=True)
        assert cost.prefill_ms == pytest.approx(expected)


def rated(**load: float) -> CoreState:
    core = Load(sequences_max=10, prefill_token_ms=0.01, prefill_pair_ms=1e-6)
    return CoreState("c", "r", replace(core, **load), rtt_ms=0.0)  # type: ignore[arg-type]


def test_a_token_costs_what_its_position_says_and_not_the_mean_of_the_latest() -> None:
    slow, fast = rated(prefill_ms_per_token=0.5), rated(prefill_ms_per_token=0.01)
    cost = cost_of(slow, prompt_tokens=10_000)
    assert cost == cost_of(fast, prompt_tokens=10_000)
    assert cost.prefill_ms == pytest.approx(0.01 * 10_000 + 1e-6 * 10_000 * 10_001 / 2)


def test_a_cached_beginning_saves_the_cheaper_tokens() -> None:
    cost = cost_of(rated(), prompt_tokens=10_000, prefix_tokens=9_000)
    assert cost.prefill_ms == pytest.approx(0.01 * 1000 + 1e-6 * 1000 * (9_000 + 1001 / 2))


def test_what_waits_takes_what_the_core_says_of_it() -> None:
    cost = cost_of(rated(queued_prefill_tokens=500, queued_prefill_ms=80.0), prompt_tokens=10)
    assert cost.queue_ms == pytest.approx(80.0)


def test_without_a_word_on_what_waits_its_tokens_count() -> None:
    cost = cost_of(rated(queued_prefill_tokens=500), prompt_tokens=10)
    assert cost.queue_ms == pytest.approx(5.0)


def test_prefill_beside_decodes_takes_longer_by_its_share() -> None:
    alone, beside = rated(queued_prefill_ms=40.0), rated(queued_prefill_ms=40.0, prefill_share=0.8)
    one, other = cost_of(alone, prompt_tokens=1000), cost_of(beside, prompt_tokens=1000)
    assert other.prefill_ms == pytest.approx(one.prefill_ms / 0.8)
    assert other.queue_ms == pytest.approx(one.queue_ms / 0.8)


@pytest.mark.parametrize("share", [0.0, -1.0, 0.01, 7.0, float("nan")])
def test_a_share_that_cannot_be_is_taken_as_all(share: float) -> None:
    assert cost_of(rated(prefill_share=share), prompt_tokens=99) == cost_of(
        rated(), prompt_tokens=99
    )


def test_opens_that_are_not_counted_yet_are_prompts_each_from_its_beginning() -> None:
    state = replace(rated(), unseen_opens=4, unseen_prompt_tokens=4000)
    cost = cost_of(state, prompt_tokens=10)
    assert cost.queue_ms == pytest.approx(4 * (0.01 * 1000 + 1e-6 * 1000 * 1001 / 2))


@pytest.mark.parametrize(
    "field", ["queued_prefill_ms", "prefill_token_ms", "prefill_pair_ms", "prefill_share"]
)
@pytest.mark.parametrize("value", [float("nan"), -1.0, 1e12])
def test_a_rate_that_cannot_be_makes_a_core_doubtful(field: str, value: float) -> None:
    assert nonsense(rated(**{field: value}))
    assert not nonsense(rated())


def test_a_core_that_says_something_new_is_weighed_anew() -> None:
    idle = replace(rated(queued_prefill_ms=0.0), rtt_ms=9.0)
    assert cost_of(idle, prompt_tokens=10) == cost_of(idle, prompt_tokens=10)
    busy = replace(idle, load=replace(idle.load, queued_prefill_ms=80.0))
    slower = replace(busy, rtt_ms=20.0)
    costs = [cost_of(state, prompt_tokens=10) for state in (idle, busy, slower)]
    assert [(cost.rtt_ms, cost.queue_ms) for cost in costs] == [
        (9.0, 0.0),
        (9.0, 80.0),
        (20.0, 80.0),
    ]


def test_a_core_that_was_weighed_is_still_what_it_was() -> None:
    one, other = rated(), rated()
    cost_of(one, prompt_tokens=10)
    assert (one, repr(one)) == (other, repr(other))
