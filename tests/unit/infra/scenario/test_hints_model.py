"""The model of hints: the table that the protocol was chosen by, and what holds at its ends."""

import pytest
from pydantic import ValidationError

from firstlight.infra.scenario.hints_model import (
    HintsModel,
    beside,
    expected,
    flat,
    hints_closed,
    plain,
    tokens_per_s,
    turns,
)
from firstlight.shared.engine.oracle import OracleConfig
from firstlight.shared.engine.steptable import H100_8B, StepTable

STEP_MS, TOKEN_MS = 25.0, 5.0
ACCEPTANCES = (0.6, 0.7, 0.8, 0.9)
TABLE = {
    5: ((49, 59), (56, 69), (67, 86), (88, 118)),
    20: ((36, 50), (43, 57), (53, 71), (72, 102)),
    50: ((24, 45), (29, 49), (38, 59), (55, 84)),
    100: ((16, 41), (20, 43), (26, 49), (41, 67)),
    150: ((12, 41), (15, 42), (20, 45), (33, 59)),
}
"""Round trip: tokens a second of turns and of hints at each acceptance."""
CELLS = [
    (rtt_ms, acceptance, *cell)
    for rtt_ms, row in TABLE.items()
    for acceptance, cell in zip(ACCEPTANCES, row, strict=True)
]


def edge(acceptance: float, token_ms: float = TOKEN_MS) -> OracleConfig:
    return OracleConfig(acceptance, token_ms)


def model(rtt_ms: float, acceptance: float, **more: object) -> HintsModel:
    return HintsModel(step=STEP_MS, rtt_ms=rtt_ms, edge=edge(acceptance), **more)


@pytest.mark.parametrize(("rtt_ms", "acceptance", "taking_turns", "with_hints"), CELLS)
def test_the_table_of_the_protocol_holds(rtt_ms, acceptance, taking_turns, with_hints):
    table = flat(STEP_MS)
    assert turns(table, rtt_ms, edge(acceptance)) == pytest.approx(taking_turns, abs=0.5)
    simulated = model(rtt_ms, acceptance).simulate(4000)
    assert simulated == pytest.approx(with_hints, rel=0.1)
    assert hints_closed(STEP_MS, rtt_ms, edge(acceptance)) == pytest.approx(with_hints, rel=0.12)


def test_without_drafts_an_id_takes_a_step():
    assert plain(flat(STEP_MS)) == 40.0
    assert HintsModel(step=STEP_MS).simulate(500) == pytest.approx(40.0)
    assert tokens_per_s(HintsModel(step="h100-8b")) == pytest.approx(1000 / H100_8B.ms(1))


def test_beside_the_core_the_simulation_is_the_formula():
    table, core = flat(STEP_MS), OracleConfig(0.8, 2.0)
    assert beside(table, core) == pytest.approx(107, abs=0.5)
    simulated = HintsModel(step=STEP_MS, core=core, hint_ids_max=64).simulate(10_000)
    assert simulated == pytest.approx(beside(table, core), rel=0.03)


@pytest.mark.parametrize("rtt_ms", [0.0, 20.0, 400.0])
@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("token_ms", [2.0, 30.0])
def test_a_core_that_never_waits_is_never_slower_than_without_hints(rtt_ms, acceptance, token_ms):
    made = HintsModel(step=STEP_MS, rtt_ms=rtt_ms, edge=edge(acceptance, token_ms))
    assert made.simulate(1000) >= 40.0 - 1e-6
    assert hints_closed(STEP_MS, rtt_ms, edge(acceptance, token_ms)) >= 40.0 - 1e-6


def test_a_drafter_that_is_always_right_sets_the_pace():
    assert model(20.0, 1.0, hint_ids_max=16).simulate(4000) == pytest.approx(200.0, rel=0.02)
    assert hints_closed(STEP_MS, 20.0, edge(1.0)) == 200.0


def test_rows_that_cost_time_take_from_what_hints_bring():
    dear = StepTable(points=((1, 25.0), (8, 75.0)))
    priced = HintsModel(step=dear, rtt_ms=5.0, edge=edge(0.8)).simulate(4000)
    assert priced < 0.8 * model(5.0, 0.8).simulate(4000)


def test_both_drafters_bring_more_than_either():
    core = OracleConfig(0.8, 2.0)
    both = model(20.0, 0.8, core=core).simulate(8000)
    assert both > model(20.0, 0.8).simulate(8000)
    assert both > HintsModel(step=STEP_MS, core=core).simulate(8000)


def test_the_same_seed_gives_the_same_race_and_another_one_another():
    assert model(20.0, 0.8).simulate(500, seed=3) == model(20.0, 0.8).simulate(500, seed=3)
    assert model(20.0, 0.8).simulate(500, seed=3) != model(20.0, 0.8).simulate(500, seed=4)


def test_expected_ids_of_a_verification():
    assert expected(0.5, 3) == 1.875


def test_a_table_that_nobody_knows_is_refused():
    with pytest.raises(ValidationError, match="step"):
        HintsModel(step="h100-9b")
