"""Who runs next: the order, the budget, admission and preemption."""

import pytest
from doubles import Answers, alone, config, engine, request, sequence

from firstlight.shared.drafting.prefilltimes import PrefillTimes
from firstlight.shared.drafting.steptimes import StepTimes
from firstlight.shared.engine.kv.manager import KvManager
from firstlight.shared.engine.plan import Slas, Turn, TurnEvent
from firstlight.shared.engine.queue import level
from firstlight.shared.engine.scheduler import Scheduler, Work
from firstlight.shared.errors import ConfigError
from firstlight.shared.types import Priority

TIMES = StepTimes()
FAR = 10_000


def scheduler(**changes: object) -> Scheduler:
    limits = config(**changes)
    return Scheduler(limits, KvManager(limits.blocks))


def names(works: list[Work]) -> list[str]:
    return [work.sequence.id for work in works]


def test_a_more_important_class_is_served_first():
    plans = scheduler(sequences_max=1)
    for name, priority in (("batch", Priority.BATCH), ("critical", Priority.CRITICAL)):
        plans.add(sequence(request(name, priority=priority)), 0.0)
    assert names(plans.plan(0.0, TIMES)) == ["critical"]


def test_within_a_class_the_earliest_deadline_is_first():
    plans = scheduler(sequences_max=1)
    for name, budget_s in (("late", 60.0), ("soon", 5.0)):
        plans.add(sequence(request(name, budget_s=budget_s)), 0.0)
    assert names(plans.plan(0.0, TIMES)) == ["soon"]


def test_with_like_deadlines_the_shortest_prefill_is_first():
    plans = scheduler(sequences_max=1)
    for name, tokens in (("long", 20), ("short", 5)):
        plans.add(sequence(request(name, range(tokens))), 0.0)
    assert names(plans.plan(0.0, TIMES)) == ["short"]


def test_within_a_class_what_is_due_first_by_its_sla_is_first():
    plans = scheduler(sequences_max=1, slas=Slas(interactive_s=2.0))
    plans.add(sequence(request("early", range(20)), now=1.0), 1.0)
    plans.add(sequence(request("late", range(5)), now=2.0), 2.0)
    assert names(plans.plan(2.0, TIMES)) == ["early"]


@pytest.mark.parametrize(("now", "first"), [(15.9, "fresh"), (16.0, "batch")])
def test_waiting_twice_the_sla_of_its_class_lifts_above_fresh_ones_if_so_configured(now, first):
    plans = scheduler(sequences_max=1, ageing_slas=2.0)
    plans.add(sequence(request("batch", priority=Priority.BATCH)), 0.0)
    plans.add(sequence(request("fresh"), now=now), now)
    assert names(plans.plan(now, TIMES)) == [first]


def test_who_arrived_with_those_of_the_higher_class_stays_behind_them_however_long_all_wait():
    plans = scheduler(sequences_max=1, ageing_slas=1.0)
    plans.add(sequence(request("batch", priority=Priority.BATCH)), 0.0)
    plans.add(sequence(request("interactive")), 0.0)
    assert names(plans.plan(100.0, TIMES)) == ["interactive"]


def test_every_class_is_at_the_top_after_a_time_that_the_slas_say():
    slas, limits = Slas(0.5, 1.0, 8.0, 30.0), config(ageing_slas=2.0)
    one = sequence(request(priority=Priority.BEST_EFFORT))
    levels = [level(one, now, config(slas=slas, ageing_slas=2.0)) for now in (59, 60, 76, 77.9, 78)]
    assert levels == [3, 2, 1, 1, 0]
    assert level(one, 1e6, limits) == 0


@pytest.mark.parametrize("low", [Priority.BATCH, Priority.BEST_EFFORT])
@pytest.mark.parametrize("high", [Priority.CRITICAL, Priority.INTERACTIVE])
def test_nothing_starves_however_many_more_important_requests_keep_coming(low, high):
    """Twice what the engine can do keeps coming; one of a lower class comes early and ends."""
    core, _ = engine(sequences_max=2, waiting_max=8, ageing_slas=1.0, host_blocks=4)
    answers, now, count = Answers(), 0.0, 0
    while "low" not in answers.finish:
        while core.load().queued < 8:
            core.add(request(f"h{count}", priority=high), epoch=1, credit=FAR, now=now)
            count += 1
            if count == 3:
                one = request("low", priority=low, max_tokens=20)
                core.add(one, epoch=1, credit=FAR, now=now)
        answers.step(core, now)
        now += 0.1
        assert now < 30.0 + 8.0 + 1.0 + 10.0
    assert now > Slas().of(low)
    assert not answers.errors


def test_a_storm_of_more_important_requests_pushes_a_sequence_aside_only_so_often():
    core, _ = engine(sequences_max=1, waiting_max=8, preemptions_max=3)
    one = request("low", max_tokens=30, priority=Priority.BATCH)
    core.add(one, epoch=1, credit=FAR, now=0.0)
    answers, count = Answers(), 0
    while "low" not in answers.finish:  # the time stands still: no ageing helps
        answers.step(core, 0.0)
        if core.load().queued == 0:
            high = request(f"h{count}", max_tokens=1, priority=Priority.CRITICAL)
            core.add(high, epoch=1, credit=FAR, now=0.0)
            count += 1
        assert answers.steps < 100
    assert core.counts.preemptions == 3
    assert answers.ids["low"] == alone(one)


def test_blocks_that_a_running_prompt_still_needs_are_not_given_to_another():
    """8 blocks, of which the first will take 7: it has two when the second asks for 3."""
    core, _ = engine(blocks=8, context_max=128, speculation="off")
    core.add(request("a", range(100), max_tokens=8), epoch=1, credit=FAR, now=0.0)
    answers = Answers()
    answers.step(core, 0.0)
    core.add(request("b", range(60, 100), max_tokens=2), epoch=1, credit=FAR, now=0.0)
    answers.step(core, 0.0)
    assert (core.load().running, core.load().queued) == (1, 1)
    answers.drain(core)
    assert core.counts.preemptions == 0


def test_a_prefix_that_runs_here_leaves_room_for_who_shares_it():
    """6 blocks: 3 are the first one's, and the second needs only 2 of its own."""
    core, _ = engine(blocks=6, context_max=96, prefill_chunk=40, speculation="off")
    core.add(request("a", range(33), max_tokens=8), epoch=1, credit=FAR, now=0.0)
    answers = Answers()
    answers.step(core, 0.0)
    core.add(request("b", (*range(32), *range(60, 80)), max_tokens=2), epoch=1, credit=FAR, now=0.0)
    answers.step(core, 0.0)
    assert (core.load().running, core.load().queued) == (2, 0)


@pytest.mark.parametrize(
    ("slas", "says"),
    [
        ({"interactive_s": 0.0}, "slas.interactive_s is 0.0"),
        ({"batch_s": 0.5}, "slas.batch_s is 0.5, not above 0 and at least 1.0"),
        ({"best_effort_s": float("inf")}, "slas.best_effort_s is inf"),
    ],
)
def test_slas_that_make_no_sense_are_a_configuration_error(slas, says):
    with pytest.raises(ConfigError, match=says):
        Slas(**slas)


def test_a_long_prompt_adds_one_chunk_to_a_step_and_decodes_come_first():
    core, runner = engine(speculation="off", step_max_ms=1e9)
    core.add(request("a", max_tokens=30), epoch=1, credit=10_000, now=0.0)
    core.step(0.0)
    core.add(request("b", range(100), max_tokens=2), epoch=1, credit=10_000, now=0.0)
    for _ in range(4):
        core.step(0.0)
    assert [one.request for one in runner.plans[1].sequences] == ["a", "b"]
    assert runner.rows[1:5] == [25, 25, 25, 25]


def chunks(prompts, *, decoding=0, times, computed=0, **limits):
    """Rows of each prompt in a step beside so many sequences that decode."""
    plans = scheduler(
        step_tokens_max=512, prefill_chunk=400, blocks=400, sequences_max=40, **limits
    )
    for place in range(decoding):
        one = sequence(request(f"decodes-{place}", range(5)))
        plans.add(one, 0.0)
        plans.plan(0.0, StepTimes())
        one.computed = 4
    for place, length in enumerate(prompts):
        one = sequence(request(f"prompt-{place}", range(length)))
        plans.add(one, 0.0)
        if computed:
            plans.plan(0.0, StepTimes(prefill=PrefillTimes(1e9)))
            one.computed = computed
    works = plans.plan(0.0, times)
    return [work.count for work in works if work.sequence.id.startswith("prompt")]


def test_a_chunk_is_cut_to_the_time_that_a_step_may_take():
    times = StepTimes(prefill=PrefillTimes(4.0))
    assert chunks([300], times=times, step_alone_max_ms=250.0) == [48]  # 62 fit, whole blocks


def test_a_chunk_further_on_in_a_prompt_is_shorter():
    times = StepTimes(prefill=PrefillTimes(1.0, 0.01))
    found = [
        chunks([350], times=times, computed=done, step_alone_max_ms=250.0) for done in (16, 208)
    ]
    assert found == [[128], [64]]


def test_prefill_beside_decodes_gets_what_they_leave_of_a_step():
    times = StepTimes(((2, 30.0),), PrefillTimes(1.0))
    assert chunks([300], decoding=2, times=times, step_max_ms=70.0) == [32]


def test_prefill_goes_on_beside_decodes_that_fill_a_step():
    times = StepTimes(((2, 60.0),), PrefillTimes(1.0))
    assert chunks([300], decoding=2, times=times, step_max_ms=70.0) == [80]


def test_prefill_gets_most_of_a_step_once_decodes_alone_take_longer_than_it_may():
    times = StepTimes(((2, 80.0),), PrefillTimes(1.0))
    assert chunks([300], decoding=2, times=times, step_max_ms=70.0) == [240]


def test_several_prompts_share_the_time_of_a_step():
    times = StepTimes(prefill=PrefillTimes(1.0))
    assert chunks([40, 50, 300], times=times, step_alone_max_ms=150.0) == [40, 50, 48]


def test_a_chunk_is_never_cut_below_a_block_and_only_one_prompt_gets_that():
    times = StepTimes(prefill=PrefillTimes(5000.0))
    assert chunks([100, 100], times=times) == [16]


def test_a_critical_request_takes_the_place_of_a_batch_one():
    core, runner = engine(sequences_max=1)
    core.add(request("batch", priority=Priority.BATCH, max_tokens=9), epoch=1, credit=999, now=0.0)
    core.step(0.0)
    core.add(request("now", priority=Priority.CRITICAL), epoch=1, credit=999, now=0.1)
    core.step(0.1)
    assert [one.request for one in runner.plans[-1].sequences] == ["now"]
    assert core.counts.preemptions == 1
    assert len(Answers().drain(core).ids["batch"]) == 8


def test_equals_do_not_push_each_other_aside():
    core, _ = engine(sequences_max=1)
    core.add(request("a", max_tokens=9), epoch=1, credit=999, now=0.0)
    core.step(0.0)
    core.add(request("b"), epoch=1, credit=999, now=0.0)
    core.step(0.0)
    assert core.counts.preemptions == 0


def test_the_least_important_gives_way_when_blocks_run_out():
    core, _ = engine(blocks=4, context_max=64, speculation="off")
    core.add(
        request("batch", range(14), max_tokens=40, priority=Priority.BATCH),
        epoch=1,
        credit=999,
        now=0.0,
    )
    core.add(request("first", range(5, 19), max_tokens=40), epoch=1, credit=999, now=0.0)
    answers = Answers()
    while "first" not in answers.finish:
        answers.step(core, 0.0)
    assert core.counts.preemptions == 1
    assert "batch" not in answers.finish
    assert len(answers.drain(core).ids["batch"]) == 40


def test_a_stalled_sequence_gives_way_before_any_other():
    core, _ = engine(blocks=4, context_max=64, speculation="off")
    core.add(
        request("stalled", range(30), max_tokens=9, priority=Priority.CRITICAL),
        epoch=1,
        credit=31,
        now=0.0,
    )
    core.step(0.0)
    core.step(0.0)
    core.add(
        request("batch", range(7, 47), max_tokens=9, priority=Priority.BATCH),
        epoch=1,
        credit=999,
        now=0.0,
    )
    answers = Answers()
    while "batch" not in answers.finish:
        answers.step(core, 0.0)
    assert core.counts.preemptions == 1


def test_a_large_prompt_at_the_head_is_not_passed_by_small_ones_for_ever():
    core, _ = engine(blocks=8, context_max=128, sequences_max=4, waiting_max=50)
    answers, now = Answers(), 0.0
    core.add(request("big", range(45), max_tokens=60), epoch=1, credit=999, now=0.0)
    for n in range(200):
        if core.load().queued < 10:
            core.add(request(f"s{n}", range(n % 7, 30), max_tokens=5), epoch=1, credit=999, now=now)
        answers.step(core, now)
        now += 0.25
    assert answers.finish["big"]


def test_a_running_prefill_goes_on_when_a_more_important_sequence_finds_no_place():
    limits = config(sequences_max=1, prefill_chunk=16)
    one = scheduler(sequences_max=1, prefill_chunk=16)
    low = sequence(request("low", range(40), priority=Priority.BATCH))
    one.add(low, 0.0)
    assert [work.sequence.id for work in one.plan(0.0, StepTimes())] == ["low"]
    low.computed += 16
    low.preempted = limits.preemptions_max  # so that nobody may push it aside
    one.add(sequence(request("high", range(20), priority=Priority.CRITICAL)), 0.0)
    assert [work.sequence.id for work in one.plan(0.0, StepTimes())] == ["low"]


def test_a_step_says_who_got_a_place_and_who_lost_it():
    core, _ = engine(sequences_max=1)
    core.add(request("batch", priority=Priority.BATCH, max_tokens=9), epoch=1, credit=999, now=0.0)
    assert core.step(0.0).turns == (
        TurnEvent("batch", Turn.ADMITTED, known=3),
        TurnEvent("batch", Turn.FIRST_STEP, known=3),
    )
    core.add(request("now", priority=Priority.CRITICAL), epoch=1, credit=999, now=0.1)
    assert core.step(0.1).turns == (
        TurnEvent("batch", Turn.PREEMPTED, known=4, tokens=3),
        TurnEvent("now", Turn.ADMITTED, known=3),
        TurnEvent("now", Turn.FIRST_STEP, known=3),
    )


def test_an_admission_says_how_much_was_cached():
    core, _ = engine()
    core.add(request("a", range(33), max_tokens=1), epoch=1, credit=999, now=0.0)
    Answers().drain(core)
    core.add(request("b", range(33), max_tokens=1), epoch=1, credit=999, now=0.0)
    assert core.step(0.0).turns[0] == TurnEvent("b", Turn.ADMITTED, known=33, tokens=32)


def test_a_stall_is_said_once_at_its_beginning_and_once_at_its_end():
    core, _ = engine(speculation="off")
    core.add(request("a", max_tokens=9), epoch=1, credit=4, now=0.0)
    turns = [turn for now in range(5) for turn in core.step(float(now)).turns][2:]
    assert turns == [TurnEvent("a", Turn.STALLED, known=4)]
    core.credit("a", 99)
    assert core.step(5.0).turns == (TurnEvent("a", Turn.RESUMED, known=4),)


def test_a_step_in_which_nobody_comes_or_goes_says_nothing():
    core, _ = engine()
    core.add(request("a", max_tokens=9), epoch=1, credit=999, now=0.0)
    core.step(0.0)
    assert core.step(0.1).turns == ()


def test_a_client_that_does_not_read_gives_way_before_who_decodes_whatever_their_classes():
    """4 blocks: each of the two has 2 when the one that decodes needs a third."""
    core, _ = engine(blocks=4, context_max=64, speculation="off", prefill_chunk=40)
    core.add(request("stands", range(30), priority=Priority.CRITICAL), epoch=1, credit=31, now=0.0)
    one = request("decodes", range(40, 70), max_tokens=9, priority=Priority.BATCH)
    core.add(one, epoch=1, credit=FAR, now=0.0)
    answers = Answers()
    while "decodes" not in answers.finish:
        answers.step(core, 0.0)
        assert answers.steps < 30
    assert core.counts.preemptions == 1
    assert core.load().queued == 1
    assert answers.ids["decodes"] == alone(one)
