"""The rates of a table are those of the steps that it was fitted to."""

import pytest

from firstlight.infra.bench.step_table import LONG, table
from firstlight.shared.drafting.prefilltimes import pairs
from firstlight.shared.engine.plan import SequencePlan, StepPlan
from firstlight.shared.engine.steptable import StepTable
from firstlight.shared.sampling import Draw, History
from firstlight.shared.types import Sampling

TRUE = StepTable(((1, 7.0), (2, 8.0), (64, 100.0)), token_ms=1.1, pair_ms=0.0007, context_ms=0.002)


class Shapes:
    """Steps that take what a table says."""

    class runner:
        block_bytes = 1000

        @staticmethod
        def move(moves):
            pass

    def decodes(self, sequences, context):
        return self._timed(sequences, context - 1, 1, 1)

    def chunk(self, tokens, position):
        return self._timed(1, position, tokens, 0)

    def _timed(self, sequences, start, tokens, draws):
        draw = Draw(Sampling(), 1, 0, start + tokens, History(()))
        one = SequencePlan("r", start, (1,) * tokens, 0, (), (draw,) * draws)
        plan = StepPlan((one,) * sequences)
        return plan, TRUE.step_ms(plan)


def test_the_table_gives_back_what_steps_take():
    made, found = table(Shapes())
    assert made.token_ms == pytest.approx(1.1, rel=0.02)
    assert made.pair_ms == pytest.approx(0.0007, rel=0.05)
    assert made.context_ms == pytest.approx(0.002, rel=0.1)
    for name, plan, ms in found:
        assert made.step_ms(plan) == pytest.approx(ms, rel=0.05), name
    assert len(found) == 7 + len(LONG) + 6
    assert pairs(16, 960) == 15496
