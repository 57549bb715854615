"""A core without a model: its steps take their time, and its answers can be read."""

import pytest
from doubles import config

from firstlight.core_node.backends.timed import PacedRunner, load_timed
from firstlight.core_node.config import ModelSection
from firstlight.shared.engine.plan import StepPlan, StepRows
from firstlight.shared.engine.steptable import H100_70B, StepTable
from firstlight.shared.engine.timed import TimedRunner
from firstlight.shared.engine.timed_ids import whole_texts
from firstlight.shared.model_files import default_model_path
from firstlight.shared.text.tokenizer import load_tokenizer


class Clock:
    """Time that passes when somebody waits, and as much as each look at it takes."""

    def __init__(self, look_s: float = 0.0) -> None:
        self.now, self.waits, self._look_s = 100.0, [], look_s

    def now_s(self) -> float:
        self.now += self._look_s
        return self.now

    def wait_s(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def paced(clock: Clock, ms: float = 20.0) -> PacedRunner:
    timed = TimedRunner(StepTable(((1, ms),)), blocks=4, host_blocks=0, vocab=100)
    return PacedRunner(timed, now_s=clock.now_s, wait_s=clock.wait_s)


def test_a_step_waits_for_the_rest_of_its_time():
    clock = Clock(look_s=0.004)
    assert paced(clock).run(StepPlan(())).ms == pytest.approx(20.0)
    assert clock.waits == [pytest.approx(0.016)]


def test_a_step_that_is_late_waits_for_nothing_and_says_how_long_it_took():
    clock = Clock(look_s=0.05)
    assert paced(clock).run(StepPlan(())) == StepRows((), pytest.approx(50.0))
    assert not clock.waits


def test_a_step_that_follows_another_begins_when_that_one_was_due():
    clock = Clock()
    runner = paced(clock)
    runner.run(StepPlan(()))
    clock.now += 0.003  # what an engine does between two steps
    assert runner.run(StepPlan(())).ms == pytest.approx(20.0)
    assert clock.now == pytest.approx(100.040)
    clock.now += 0.050  # nothing to do
    runner.run(StepPlan(()))
    assert clock.now == pytest.approx(100.110)


def test_a_step_waits_for_a_drafter_and_does_not_count_that_as_its_own_time():
    clock = Clock()
    runner = paced(clock)
    runner.delay(0.004)
    runner.delay(0.002)
    assert runner.run(StepPlan(())).ms == pytest.approx(20.0)
    assert clock.now == pytest.approx(100.026)
    runner.run(StepPlan(()))
    assert clock.now == pytest.approx(100.046)


def test_a_timed_core_reads_no_weights_and_says_what_it_is():
    limits = config(blocks=64, context_max=100_000, step_max_ms=70.0)
    loaded = load_timed(ModelSection(timed=StepTable(((1, 0.1),)), name="big"), limits)
    assert loaded.offer.models == ("big",)
    assert loaded.offer.context_max == 1024, "what its blocks hold, whatever the model can"
    assert not loaded.engine.has_work


def test_timed_cores_continue_each_other_whatever_their_speed_and_share_blocks_of_one_size():
    def load(timed):
        return load_timed(ModelSection(timed=timed), config(blocks=64))

    fast, slow, h100 = load(StepTable(((1, 0.1),))), load(StepTable(((1, 0.2),))), load("h100-70b")
    assert fast.numerics_class == slow.numerics_class == h100.numerics_class
    assert fast.namespace == slow.namespace != h100.namespace
    assert h100.engine.block_bytes == H100_70B.block_bytes


def test_every_id_of_an_answer_can_be_seen():
    tokenizer = load_tokenizer(default_model_path())
    ids = whole_texts(tokenizer.vocab, tokenizer.token_bytes)
    assert len(ids) > 0.9 * tokenizer.vocab
    assert not set(ids) & set(tokenizer.control.values())
    assert all(tokenizer.decode([id_]).isprintable() for id_ in ids[::50])
