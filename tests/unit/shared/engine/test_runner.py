"""The glue between a plan and the model's rows."""

import pytest

pytest.importorskip("torch")

from doubles import PagedRunner

from firstlight.shared.engine.kv.manager import Moves
from firstlight.shared.engine.plan import SequencePlan, StepPlan
from firstlight.shared.engine.runner import (
    COPIED_BLOCKS_MAX,
    COPYING_S,
    measured_copies,
    step_batch,
)
from firstlight.shared.sampling import Draw, History
from firstlight.shared.types import Sampling


def draws(count: int) -> tuple[Draw, ...]:
    return tuple(Draw(Sampling(), 1, 0, n, History(())) for n in range(count))


def test_rows_of_all_sequences_stand_one_after_another_with_their_slots():
    plan = StepPlan(
        (
            SequencePlan("verify", 16, (7, 8, 9), 2, (4, 2), draws(3)),
            SequencePlan("chunk", 14, (1, 2, 3), 0, (5, 3), ()),
            SequencePlan("decode", 0, (6,), 0, (0,), draws(1)),
        )
    )
    batch = step_batch(plan)
    assert batch.ids.tolist() == [7, 8, 9, 1, 2, 3, 6]
    assert batch.positions.tolist() == [16, 17, 18, 14, 15, 16, 0]
    assert batch.slots.tolist() == [32, 33, 34, 94, 95, 48, 0]
    assert batch.logit_rows.tolist() == [0, 1, 2, 6]
    assert [(s.first_row, s.rows, s.context) for s in batch.spans] == [
        (0, 3, 19),
        (3, 3, 17),
        (6, 1, 1),
    ]


class CopyingRunner(PagedRunner):
    """A `PagedRunner` on a clock of its own, whose copies take as long as a test says."""

    def __init__(self, blocks: int, *round_ms: float) -> None:
        super().__init__(blocks)
        self.round_ms, self.now_s = round_ms, 0.0

    def move(self, moves: Moves) -> None:
        super().move(moves)
        self.now_s += self.round_ms[min(len(self.moved), len(self.round_ms)) - 1] / 1000


def measured(runner: CopyingRunner, blocks: int) -> float | None:
    return measured_copies(runner, blocks, lambda: runner.now_s)


def test_the_speed_of_copies_is_that_of_the_median_round_without_the_first():
    runner = CopyingRunner(4, 500.0, 4.0, 3.0, 4.0, 100.0)
    assert measured(runner, 4) == pytest.approx(2 * 4 * runner.block_bytes / 0.004)
    assert len(runner.moved) == 5


def test_measuring_copies_ends_after_one_round_that_takes_long():
    runner = CopyingRunner(4, 1.0, COPYING_S * 1000)
    assert measured(runner, 4) == pytest.approx(2 * 4 * runner.block_bytes / COPYING_S)
    assert len(runner.moved) == 2


def test_measuring_copies_moves_a_few_blocks_and_changes_none():
    runner = CopyingRunner(100, 10.0)
    runner.slots[:] = range(len(runner.slots))
    before = runner.slots.copy()
    measured(runner, 100)
    assert (runner.slots == before).all()
    assert {len(moves.saves) for moves in runner.moved} == {COPIED_BLOCKS_MAX}


def test_without_a_host_tier_there_is_no_speed_of_copies():
    runner = CopyingRunner(4, 1.0)
    assert measured(runner, 0) is None
    assert runner.moved == []
