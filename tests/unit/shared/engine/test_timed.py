"""A runner that simulates time: its table, its ids, and that wrong blocks do not pass."""

from dataclasses import replace

import pytest
from doubles import Answers, config, request

from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.kv.manager import Moves
from firstlight.shared.engine.plan import SequencePlan, StepPlan
from firstlight.shared.engine.steptable import StepTable
from firstlight.shared.engine.timed import TimedRunner
from firstlight.shared.sampling import Draw, History
from firstlight.shared.types import Priority, Request, Sampling

FAR = 10_000
TABLE = StepTable.linear(8.0, 0.5, block_copy_ms=0.25)


class Keeping(TimedRunner):
    """Remembers the rows of its steps."""

    def __init__(self, blocks: int, host_blocks: int = 0) -> None:
        super().__init__(TABLE, blocks=blocks, host_blocks=host_blocks, vocab=1000)
        self.plans: list[StepPlan] = []

    def run(self, plan):
        self.plans.append(plan)
        return super().run(plan)


def core(**changes: object) -> tuple[Engine, Keeping]:
    limits = config(**changes)
    runner = Keeping(limits.blocks, limits.host_blocks)
    return Engine(runner, limits), runner


def alone(one: Request) -> list[int]:
    made, _ = core(blocks=64, context_max=1024, speculation="off")
    made.add(one, epoch=1, credit=FAR, now=0.0)
    return Answers().drain(made).ids[one.id]


def rows(ids, table, start=0, *, history=None, drafted=0, name="r") -> SequencePlan:
    known = ids[: len(ids) - drafted]
    history = history or History(known if start == 0 else ())
    draws = tuple(
        Draw(
            Sampling(), 1, 0, start + len(known) + ahead, history, tuple(ids[len(known) :][:ahead])
        )
        for ahead in range(drafted + 1)
    )
    return SequencePlan(name, start, tuple(ids), drafted, tuple(table), draws)


def test_a_step_says_how_long_it_took_copies_before_it_included():
    runner = Keeping(2, 2)
    runner.run(StepPlan((rows(range(16), [0]),)))
    runner.move(Moves(saves=((0, 1),), fills=((1, 1),)))
    assert runner.run(StepPlan((rows(range(20), [0, 1]),))).ms == 8.0 + 20 * 0.5 + 2 * 0.25
    assert runner.run(StepPlan((rows(range(20), [0, 1]),))).ms == 18.0


def test_an_answer_is_the_same_alone_in_a_crowd_hinted_and_preempted():
    made, _ = core(blocks=9, context_max=128, host_blocks=3, waiting_max=20, speculation="always")
    asked = [request(f"r{n}", range(n % 3, n + 20), max_tokens=40, seed=n) for n in range(12)]
    truths = {one.id: alone(one) for one in asked}
    for one in asked:
        made.add(one, epoch=1, credit=FAR, now=0.0)
    answers, now = Answers(), 0.0
    while made.has_work:
        for name, start in made.next_positions().items():
            have = start - len(asked[int(name[1:])].prompt)
            made.candidate(name, start, tuple(truths[name][have : have + 3]), ("s",) * 3)
        answers.step(made, now)
        now += 0.05
    assert made.counts.preemptions > 0
    assert answers.ids == truths


def test_a_greedy_answer_does_not_depend_on_the_seed_and_another_does():
    greedy = request(sampling=Sampling(temperature=0.0), seed=1)
    assert alone(greedy) == alone(replace(greedy, seed=2))
    assert alone(request(seed=1)) != alone(request(seed=2))


def test_a_table_with_the_blocks_in_another_order_is_noticed():
    runner = Keeping(3)
    history = History(range(32))
    runner.run(StepPlan((rows(range(32), [0, 1], history=history),)))
    with pytest.raises(AssertionError, match="not a first one"):
        runner.run(StepPlan((rows([5], [1, 0, 2], 32, history=history),)))


def test_a_block_of_another_prefix_is_noticed():
    runner = Keeping(4)
    runner.run(StepPlan((rows(range(32), [0, 1]), rows(range(50, 82), [2, 3], name="other"))))
    with pytest.raises(AssertionError, match="another prefix at position 16"):
        runner.run(StepPlan((rows([9, 9], [0, 3], 30),)))


def test_a_whole_chain_of_another_sequence_is_noticed():
    runner = Keeping(4)
    one, other = History(range(20)), History(range(50, 70))
    runner.run(StepPlan((rows(range(20), [0, 1], history=one),)))
    runner.run(StepPlan((rows(range(50, 70), [2, 3], history=other, name="other"),)))
    with pytest.raises(AssertionError, match="r: the KV of another sequence"):
        runner.run(StepPlan((rows([9], [2, 3], 20, history=one),)))
    with pytest.raises(AssertionError, match="not its ids"):
        runner.run(StepPlan((rows([9], [2, 3], 20, history=History((1, 2))),)))


def test_a_block_that_nothing_was_written_to_is_noticed():
    runner = Keeping(2)
    with pytest.raises(AssertionError, match="no KV before position 16"):
        runner.run(StepPlan((rows([9], [0, 1], 16),)))
    runner.run(StepPlan((rows(range(16), [0]),)))
    runner.scrub([0])
    with pytest.raises(AssertionError, match="no KV before position 16"):
        runner.run(StepPlan((rows([9], [0, 1], 16),)))


def test_two_sequences_that_write_to_one_block_are_noticed():
    runner = Keeping(2)
    with pytest.raises(AssertionError, match="overwritten in the same step"):
        runner.run(StepPlan((rows(range(9), [0]), rows(range(50, 59), [0], name="other"))))


def test_a_block_that_travelled_is_what_it_was():
    one, other = Keeping(1), Keeping(2, 1)
    one.run(StepPlan((rows(range(16), [0]),)))
    payload = one.read_block(0)
    assert len(payload) == one.block_bytes
    other.write_slot(0, payload)
    other.move(Moves(fills=((0, 1),)))
    assert other.read_slot(0) == other.read_block(1) == payload
    history = History(range(17))
    plan = StepPlan((rows([16], [1, 0], 16, history=history),))
    assert len(other.run(plan).sampled[0]) == 1


def test_interactive_requests_in_a_crowd_wait_for_their_first_id_a_quarter_of_the_time():
    """Virtual time: 80 at once, every fourth interactive; both orders give everybody everything."""
    waits, took = [], []
    for classes in ((Priority.INTERACTIVE, *[Priority.BATCH] * 3), (Priority.INTERACTIVE,) * 4):
        made, _ = core(blocks=100, sequences_max=16, step_tokens_max=128, waiting_max=80)
        for n in range(80):
            one = request(f"r{n}", range(n, n + 48), max_tokens=8, priority=classes[n % 4])
            made.add(one, epoch=1, credit=FAR, now=0.0)
        now, firsts = 0.0, dict[str, float]()
        while made.has_work:
            result = made.step(now)
            now += result.ms / 1000
            for outcome in result.outcomes:
                firsts.setdefault(outcome.request, now)
        assert len(firsts) == 80
        waits.append(max(firsts[f"r{n}"] for n in range(0, 80, 4)))
        took.append(now)
    assert waits[0] <= waits[1] / 4 * 1.1  # the crowd is small: its last wave weighs more
    assert took[0] <= took[1] * 1.12


def test_answers_are_made_of_the_ids_that_they_may_have():
    limits = config(blocks=8, context_max=128)
    runner = TimedRunner(TABLE, blocks=8, host_blocks=0, vocab=1000, answer_ids=(7, 8, 9))
    made = Engine(runner, limits)
    made.add(request("r", range(5), max_tokens=60), epoch=1, credit=FAR, now=0.0)
    assert set(Answers().drain(made).ids["r"]) == {7, 8, 9}


def test_a_block_is_as_large_as_the_table_says_and_comes_back_whole():
    table = replace(TABLE, block_bytes=4096)
    one, other = (TimedRunner(table, blocks=2, host_blocks=1, vocab=1000) for _ in range(2))
    one.run(StepPlan((rows(range(16), [1]),)))
    payload = one.read_block(1)
    assert len(payload) == one.block_bytes == 4096
    other.write_slot(0, payload)
    other.move(Moves(saves=(), fills=((0, 1),)))
    assert other.read_block(1) == payload == other.read_slot(0)
