"""Which rows of a step count, and what they bring to a sequence."""

import pytest
from doubles import Answers, PagedRunner, alone, engine, request, sequence

from firstlight.shared.engine.sampler import Sampled
from firstlight.shared.engine.scheduler import Work
from firstlight.shared.engine.verdict import Verdict, judge, outcome
from firstlight.shared.sampling import Sampling
from firstlight.shared.types import FinishReason, HintCount, TokenLogprobs


def work(*drafted: int, max_tokens: int = 8, sources: tuple[str, ...] = ()) -> Work:
    made = sequence(request(max_tokens=max_tokens, eos_ids=frozenset({99})))
    made.first_step_s = 2.0
    made.computed = made.known - 1
    return Work(made, 1, drafted, sources or ("edge-model",) * len(drafted))


def rows(*ids: int) -> tuple[Sampled, ...]:
    return tuple(Sampled(-1, error="not finite") if one < 0 else Sampled(one) for one in ids)


def test_a_row_without_a_draft_is_the_next_id():
    assert judge(work(), rows(7)) == Verdict(rows(7))


def test_a_draft_that_is_right_brings_all_its_ids_and_one_more():
    verdict = judge(work(5, 6), rows(5, 6, 7))
    assert verdict.ids == (5, 6, 7)
    assert verdict.matches == (("edge-model", True), ("edge-model", True))


def test_rows_behind_an_id_that_disagrees_count_for_nothing():
    verdict = judge(work(5, 6, 7), rows(5, 4, 7, 8))
    assert verdict.ids == (5, 4)
    assert verdict.matches == (("edge-model", True), ("edge-model", False))


@pytest.mark.parametrize(
    ("max_tokens", "eos", "finish"), [(2, 6, FinishReason.LENGTH), (8, 99, FinishReason.STOP)]
)
def test_rows_behind_the_end_of_the_answer_count_for_nothing(max_tokens, eos, finish):
    verdict = judge(work(5, eos, 7, max_tokens=max_tokens), rows(5, eos, 7, 8))
    assert (verdict.ids, verdict.finish) == ((5, eos), finish)
    assert len(verdict.matches) == 2


def test_a_row_that_failed_is_an_error_only_if_the_draft_before_it_was_right():
    assert judge(work(5), rows(5, -1)).error == "not finite"
    assert judge(work(5), rows(4, -1)) == Verdict(rows(4), (("edge-model", False),), spoiled=True)


def test_a_row_that_failed_behind_the_end_changes_no_answer_and_spoils_its_kv():
    verdict = judge(work(99), rows(99, -1))
    assert (verdict.ids, verdict.finish, verdict.error) == ((99,), FinishReason.STOP, "")
    assert verdict.spoiled


def test_the_outcome_counts_all_drafted_rows_and_those_that_were_right_by_source():
    asked = work(5, 6, 7, sources=("b", "a", "a"))
    made = outcome(asked, judge(asked, rows(5, 6, 1, 2)))
    assert made.ids == (5, 6, 1)
    assert made.verified == (
        ("a", HintCount(verified=2, accepted=1)),
        ("b", HintCount(verified=1, accepted=1)),
    )


def test_only_the_first_outcome_says_how_the_sequence_came_to_its_place():
    asked = work()
    asked.sequence.cached_tokens = 16
    first = outcome(asked, judge(asked, rows(7)))
    assert (first.cached_tokens, first.queue_ms, first.started_s) == (16, 2000.0, 2.0)
    later = outcome(asked, judge(asked, rows(8)))
    assert (later.cached_tokens, later.queue_ms, later.started_s) == (None, None, None)


def test_logprobs_are_told_of_the_ids_that_are_committed():
    told = [TokenLogprobs(-1.0, ((5, -1.0),)), TokenLogprobs(-2.0, ((4, -2.0),))]
    found = (Sampled(5, told[0]), Sampled(4, told[1]), Sampled(9, told[0]))
    asked = work(5, 6)
    assert outcome(asked, judge(asked, found)).logprobs == tuple(told)


def test_a_hint_of_the_end_does_not_turn_an_answer_into_a_failure():
    """Behind the last id nothing is finite; without the hint nobody ever computes that."""
    greedy = Sampling(temperature=0.0)
    truth = alone(request("a", max_tokens=30, sampling=greedy))
    last = next(place for place in range(1, 30) if truth[place] not in truth[:place])
    asked = request("a", max_tokens=30, sampling=greedy, eos_ids=frozenset({truth[last]}))
    core, runner = engine(PagedRunner(32, poison=frozenset({truth[last]})), speculation="always")
    core.add(asked, epoch=1, credit=10_000, now=0.0)
    answers = Answers()
    for _ in range(last):
        answers.step(core, 0.0)
    core.candidate("a", 3 + last, (truth[last],), ("edge-model",))
    answers.drain(core)
    assert answers.errors == {}
    assert (answers.ids["a"], answers.finish["a"]) == (truth[: last + 1], FinishReason.STOP)
    assert runner.scrubbed
    assert (core.blocks.used, core.blocks.cached) == (0, 0)
