"""What the latest steps did is kept, up to two limits."""

from firstlight.core_node.step_log import StepLog, StepRecord, drafts, step_record
from firstlight.shared.engine.plan import Outcome, Ran, StepResult, Turn, TurnEvent
from firstlight.shared.types import HintCount, Load

RAN = Ran("a", 1, 0, samples=True)


def record(at_s: float, sequences: int = 1) -> StepRecord:
    return StepRecord(at_s, at_s + 0.5, at_s + 0.75, ran=(RAN,) * sequences)


def test_the_oldest_step_gives_way_to_the_newest() -> None:
    log = StepLog(steps_max=3)
    for at_s in range(5):
        log.add(record(at_s))
    assert [one.began_s for one in log.records()] == [2, 3, 4]


def test_wide_steps_are_fewer_steps() -> None:
    log = StepLog(steps_max=100, entries_max=10)
    for at_s in range(5):
        log.add(record(at_s, sequences=4))
    assert [one.began_s for one in log.records()] == [3, 4]


def test_a_turn_in_which_nothing_happened_is_not_kept() -> None:
    log = StepLog()
    log.add(StepRecord(1.0, 1.0, 1.0, running=3))
    assert log.records() == ()
    log.add(StepRecord(2.0, 2.0, 2.0, ended=(("a", "abort"),)))
    assert len(log.records()) == 1


def outcome(name: str, *verified: tuple[str, HintCount]) -> Outcome:
    return Outcome(name, 1, 10, (7, 8, 9), verified=verified)


def test_a_record_has_numbers_of_what_a_step_did_and_no_ids() -> None:
    turn = TurnEvent("a", Turn.ADMITTED, 10, 0)
    counts = (("x", HintCount(0, 3, 2)), ("y", HintCount(0, 1, 0)))
    result = StepResult(
        (outcome("a", *counts),), turns=(turn,), rows=5, ran=(Ran("a", 1, 4, True),)
    )
    load = Load(running=2, queued=1, kv_used_share=0.5)
    made = step_record(result, load, (1.0, 2.0, 3.0), (("a", 0.5),), (("a", "stop"),))
    assert (made.began_s, made.ended_s, made.handed_s) == (1.0, 2.0, 3.0)
    [brought] = made.committed
    assert (brought.request, brought.ids, brought.accepted) == ("a", 3, 2)
    assert (made.running, made.waiting, made.kv_used_share) == (2, 1, 0.5)
    assert made.turns == (turn,)
    assert made.entries == 5


def test_drafts_are_those_of_sequences_that_had_one() -> None:
    counts = (("x", HintCount(0, 3, 2)), ("y", HintCount(0, 1, 0)))
    assert drafts([outcome("a", *counts), outcome("b")]) == ((4, 2),)
