"""The numbers of a plan as kernels read them."""

import numpy as np

from firstlight.shared.engine.device.buckets import Limits
from firstlight.shared.engine.device.inputs import NOWHERE, Writer, fields
from firstlight.shared.engine.plan import SequencePlan, StepPlan

BUCKET = Limits(rows=16, sequences=3, context=64).bucket(14, 40)


def part(name: str, start: int, ids: tuple[int, ...], table: tuple[int, ...]) -> SequencePlan:
    return SequencePlan(name, start, ids, 0, table, ())


def memory() -> dict[str, np.ndarray]:
    """With what an earlier step left."""
    return {
        name: np.full(shape, 77, str(dtype).removeprefix("torch."))
        for name, dtype, shape in fields(BUCKET)
    }


def test_rows_stand_one_sequence_after_another_and_a_prompt_is_cut_into_spans():
    inputs = memory()
    verify = part("verify", 16, (7, 8, 9), (4, 2))
    prompt = part("prompt", 14, tuple(range(10)), (5, 3))
    Writer(blocks=6, vocab=20).write(StepPlan((verify, prompt)), inputs)
    assert inputs["ids"].tolist() == [7, 8, 9, *range(10), 0, 0, 0]
    assert inputs["positions"].tolist() == [16, 17, 18, *range(14, 24), 0, 0, 0]
    assert inputs["slots"].tolist() == [32, 33, 34, 94, 95, *range(48, 56), *[NOWHERE] * 3]
    assert inputs["spans"].tolist() == [[0, 3, 19], [3, 8, 22], [11, 2, 24], [0, 0, 0], [0, 0, 0]]
    assert inputs["owners"].tolist() == [0, 1, 1, 0, 0]
    assert inputs["tables"][:2, :2].tolist() == [[4, 2], [5, 3]]


def test_a_table_that_changed_since_the_step_before_is_written_anew():
    inputs, writer = memory(), Writer(blocks=9, vocab=20)
    for table in ((4, 2), (4, 2, 8), (4, 3, 8)):
        writer.write(StepPlan((part("r", 30, (1, 2), table),)), inputs)
        used = table[: 32 // 16]
        assert inputs["tables"][0, : len(used)].tolist() == list(used)
        assert inputs["slots"][:2].tolist() == [16 * table[1] + 14, 16 * table[1] + 15]
