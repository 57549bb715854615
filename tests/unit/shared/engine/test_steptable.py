"""Step-time tables: their arithmetic, and that they give back what was published."""

import pytest

from firstlight.shared.drafting.prefilltimes import pairs
from firstlight.shared.engine.plan import SequencePlan, StepPlan
from firstlight.shared.engine.steptable import H100_8B, H100_70B, StepTable
from firstlight.shared.errors import ConfigError
from firstlight.shared.sampling import Draw, History
from firstlight.shared.types import Sampling

FULL = StepTable(((1, 10.0), (3, 14.0)), token_ms=0.5, pair_ms=0.01, context_ms=0.001)


def rows(start: int, tokens: int, draws: int) -> SequencePlan:
    draw = Draw(Sampling(), 1, 0, 0, History(()), ())
    table = tuple(range((start + tokens) // 16 + 1))
    return SequencePlan("r", start, (5,) * tokens, max(draws - 1, 0), table, (draw,) * draws)


@pytest.mark.parametrize(
    ("rows", "ms"), [(1, 10.0), (4, 10.0), (6, 12.0), (8, 14.0), (12, 24.0), (16, 34.0), (20, 44.0)]
)
def test_rows_take_what_the_points_say_straight_between_and_beyond(rows, ms):
    assert StepTable(((4, 10.0), (8, 14.0), (16, 34.0))).ms(rows) == ms


@pytest.mark.parametrize("points", [(), ((2, 1.0), (1, 2.0)), ((1, 2.0), (2, 1.0)), ((0, 1.0),)])
def test_points_that_make_no_sense_are_a_configuration_error(points):
    with pytest.raises(ConfigError, match="step-time table"):
        StepTable(points)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pair_ms", -1),
        ("token_ms", float("nan")),
        ("context_ms", float("inf")),
        ("block_copy_ms", float("inf")),
        ("block_bytes", -1),
        ("block_bytes", 1 << 40),
    ],
)
def test_what_no_step_or_block_can_have_is_a_configuration_error(name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        StepTable(((1, 1.0),), **{name: value})


def test_a_step_that_never_ends_is_a_configuration_error():
    with pytest.raises(ConfigError, match="a step has to end"):
        StepTable(((1, 1.0), (2, float("inf"))))


def test_a_decode_pays_for_its_row_and_its_context():
    assert FULL.step_ms(StepPlan((rows(99, 1, 1),))) == pytest.approx(10.0 + 0.1)


def test_a_chunk_pays_for_its_tokens_and_for_all_that_they_look_at():
    expected = 10.0 + 0.5 * 16 + 0.01 * pairs(16, 32)
    assert FULL.step_ms(StepPlan((rows(32, 16, 0),))) == pytest.approx(expected)


def test_the_last_token_of_a_prompt_is_a_sampled_row_and_drafts_are_more_of_them():
    expected = 14.0 + 0.5 * 13 + 0.01 * pairs(13, 0) + 0.001 * 16
    assert FULL.step_ms(StepPlan((rows(0, 16, 3),))) == pytest.approx(expected)


def test_without_a_rate_of_their_own_prefill_tokens_are_rows():
    linear = StepTable.linear(8.0, 0.5)
    assert linear.step_ms(StepPlan((rows(0, 16, 1), rows(40, 1, 1)))) == 8.0 + 17 * 0.5


def between_tokens_ms(table: StepTable, streams: int, tokens_in: int, tokens_out: int) -> float:
    """Time between two tokens while others come and go: their prefills are shared by all."""
    decodes = tuple(rows(tokens_in + tokens_out // 2, 1, 1) for _ in range(streams))
    prefill_ms = table.token_ms * tokens_in + table.pair_ms * pairs(tokens_in, 0)
    return table.step_ms(StepPlan(decodes)) + (streams - 1) * prefill_ms / tokens_out


@pytest.mark.parametrize(
    ("streams", "ms"), [(1, 18.58), (5, 21.83), (25, 38.75), (50, 59.73)], ids=str
)
def test_the_70b_table_gives_the_published_time_between_tokens(streams, ms):
    assert between_tokens_ms(H100_70B, streams, 5000, 500) == pytest.approx(ms, rel=0.06)


@pytest.mark.parametrize(("tokens", "ms"), [(500, 47.77), (5000, 406.77)])
def test_the_70b_table_gives_the_published_time_to_a_first_token(tokens, ms):
    assert H100_70B.step_ms(StepPlan((rows(0, tokens, 1),))) == pytest.approx(ms, rel=0.02)


@pytest.mark.parametrize(
    ("streams", "ms"),
    [(1, 4.63), (25, 5.19), (50, 5.91), (100, 7.57), (150, 9.81), (200, 12.65), (250, 16.14)],
    ids=str,
)
def test_the_8b_table_gives_the_published_time_between_tokens(streams, ms):
    assert between_tokens_ms(H100_8B, streams, 200, 200) == pytest.approx(ms, rel=0.06)
