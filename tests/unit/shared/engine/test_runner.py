"""The glue between a plan and the model's rows."""

import pytest

pytest.importorskip("torch")

from firstlight.shared.engine.plan import SequencePlan, StepPlan
from firstlight.shared.engine.runner import step_batch
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
