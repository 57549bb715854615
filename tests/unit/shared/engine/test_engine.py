"""The engine over a runner that keeps ids in a paged pool: what is committed, and what is freed."""

import pytest
from doubles import VOCAB, Answers, PagedRunner, alone, engine, request

from firstlight.shared.engine.plan import Ran
from firstlight.shared.errors import (
    CapacityError,
    ConfigError,
    DeadlineError,
    RequestError,
    SlowClientError,
    StaleError,
)
from firstlight.shared.types import FinishReason, Priority, Sampling

FAR = 10_000


def test_an_answer_ends_at_max_tokens():
    core, _ = engine()
    core.add(request(max_tokens=5), epoch=1, credit=FAR, now=0.0)
    answers = Answers().drain(core)
    assert len(answers.ids["r"]) == 5
    assert answers.finish["r"] is FinishReason.LENGTH
    assert core.blocks.used == 0


def test_an_answer_ends_at_the_first_eos_even_inside_a_verified_run():
    truth = alone(request(max_tokens=12))
    asked = request(max_tokens=12, eos_ids=frozenset({truth[4]}))
    end = truth.index(truth[4]) + 1
    core, _ = engine(speculation="always")
    core.add(asked, epoch=1, credit=FAR, now=0.0)
    core.candidate("r", 3, tuple(truth[:7]), ("s",) * 7)
    answers = Answers().drain(core)
    assert answers.ids["r"] == truth[:end]
    assert answers.finish["r"] is FinishReason.STOP


def test_right_hints_save_steps_and_never_go_past_max_tokens():
    asked = request(max_tokens=8)
    truth = alone(asked)
    core, _ = engine(speculation="always")
    core.add(asked, epoch=1, credit=FAR, now=0.0)
    core.candidate("r", 3, tuple(truth[:7]), ("s",) * 7)
    answers = Answers().drain(core)
    assert answers.ids["r"] == truth
    assert answers.steps == 1


def test_wrong_hints_change_nothing_and_are_counted():
    asked = request(max_tokens=2)
    truth = alone(asked)
    core, _ = engine(speculation="always")
    core.add(asked, epoch=1, credit=FAR, now=0.0)
    core.candidate("r", 3, ((truth[0] + 1) % VOCAB,), ("s",))
    outcome = core.step(0.0).outcomes[0]
    assert outcome.ids == (truth[0],)
    ((source, count),) = outcome.verified
    assert (source, count.verified, count.accepted) == ("s", 1, 0)


def test_hints_for_another_position_or_with_impossible_ids_get_no_row():
    core, runner = engine(speculation="always")
    core.add(request(), epoch=1, credit=FAR, now=0.0)
    core.candidate("r", 2, (1, 1), ("s", "s"))
    core.candidate("r", 3, (VOCAB, 1), ("s", "s"))
    core.candidate("nobody", 3, (1,), ("s",))
    core.step(0.0)
    assert runner.rows == [3]


def test_a_hint_counts_for_one_step_only():
    core, runner = engine(speculation="always", sequences_max=1)
    core.add(request("a"), epoch=1, credit=FAR, now=0.0)
    core.step(0.0)
    core.candidate("a", 4, (1,), ("s",))
    core.step(0.0)
    core.step(0.0)
    assert runner.rows == [3, 2, 1]


def test_with_speculation_off_no_draft_gets_a_row():
    core, runner = engine(speculation="off")
    core.add(request(), epoch=1, credit=FAR, now=0.0)
    core.candidate("r", 3, (1, 2), ("s", "s"))
    core.step(0.0)
    assert runner.rows == [3]


def test_drafts_take_free_blocks_only_and_never_evict():
    core, runner = engine(blocks=2, context_max=32, speculation="always")
    core.add(request(prompt=range(16), max_tokens=16), epoch=1, credit=FAR, now=0.0)
    Answers().drain(core)
    core.add(request("b", range(1, 17), max_tokens=10), epoch=1, credit=FAR, now=1.0)
    core.candidate("b", 16, (1, 1, 1), ("s",) * 3)
    core.step(1.0)
    assert runner.rows[-1] == 16
    assert core.blocks.cached == 1


def test_a_prompt_is_prefilled_in_chunks_and_shares_its_prefix_with_the_next():
    core, runner = engine(speculation="off")
    asked = request("a", range(40), max_tokens=1)
    core.add(asked, epoch=1, credit=FAR, now=0.0)
    Answers().drain(core)
    assert runner.rows == [24, 16]
    core.add(request("b", range(40), max_tokens=1), epoch=1, credit=FAR, now=1.0)
    outcome = core.step(1.0).outcomes[0]
    assert outcome.cached_tokens == 32
    assert runner.rows[-1] == 8
    assert outcome.ids == tuple(alone(asked))


def test_a_step_says_how_much_of_each_sequence_it_ran():
    made, _ = engine(speculation="always", prefill_chunk=24)
    made.add(request("a", range(40), max_tokens=4), epoch=1, credit=FAR, now=0.0)
    first, second = made.step(0.0), made.step(0.0)
    assert first.ran == (Ran("a", 24, 0, samples=False),)
    assert second.ran == (Ran("a", 16, 0, samples=True),)
    assert (first.prefill_tokens, second.prefill_tokens) == (24, 16)
    made.candidate("a", 41, (1, 2), ("x", "x"))
    third = made.step(0.0)
    assert third.ran == (Ran("a", 1, 2, samples=True),)
    assert (third.rows, third.prefill_tokens) == (3, 0)


def test_another_salt_finds_no_prefix():
    core, _ = engine()
    core.add(request("a", range(40), max_tokens=1), epoch=1, credit=FAR, now=0.0)
    Answers().drain(core)
    core.add(request("b", range(40), max_tokens=1, salt=b"other"), epoch=1, credit=FAR, now=0.0)
    core.step(0.0)
    assert core.step(0.0).outcomes[0].cached_tokens == 0


def test_a_flushed_cache_finds_no_prefix():
    core, _ = engine()
    core.add(request("a", range(20), max_tokens=1), epoch=1, credit=FAR, now=0.0)
    Answers().drain(core)
    core.flush_cache()
    assert core.blocks.cached == 0
    core.add(request("b", range(20), max_tokens=1), epoch=1, credit=FAR, now=0.0)
    assert core.step(0.0).outcomes[0].cached_tokens == 0


def test_many_at_once_say_what_each_says_alone():
    core, _ = engine(speculation="off")
    asked = [
        request(f"r{n}", range(n, n + 10 + 7 * n), max_tokens=20, seed=n, sampling=sampling)
        for n, sampling in enumerate(
            (
                Sampling(temperature=0.0),
                Sampling(presence_penalty=1.0, frequency_penalty=0.5),
                Sampling(repetition_penalty=1.5, top_p=0.9),
                Sampling(temperature=1.2, min_p=0.1),
            )
        )
    ]
    for one in asked:
        core.add(one, epoch=1, credit=FAR, now=0.0)
    answers = Answers().drain(core)
    assert {one.id: alone(one) for one in asked} == answers.ids


def test_preempted_sequences_say_what_they_say_undisturbed():
    core, _ = engine(blocks=7, context_max=112, speculation="off")
    asked = [request(f"r{n}", range(n, n + 12), max_tokens=60, seed=n) for n in range(4)]
    for one in asked:
        core.add(one, epoch=1, credit=FAR, now=0.0)
    answers = Answers().drain(core)
    assert core.counts.preemptions > 0
    assert answers.ids == {one.id: alone(one) for one in asked}


def test_a_resumed_answer_goes_on_where_it_was_with_its_penalties():
    asked = request(max_tokens=20, sampling=Sampling(frequency_penalty=1.5, presence_penalty=0.5))
    truth = alone(asked)
    assert alone(asked, committed=tuple(truth[:9])) == truth[9:]


def test_a_resumed_answer_that_is_complete_ends_at_once():
    core, _ = engine()
    core.add(request(max_tokens=2), epoch=3, committed=(4, 5), credit=FAR, now=0.0)
    outcome = core.step(0.0).outcomes[0]
    assert (outcome.ids, outcome.finish, outcome.epoch) == ((), FinishReason.LENGTH, 3)
    assert not core.has_work


def test_a_higher_epoch_replaces_and_finds_its_own_prefix():
    core, _ = engine()
    asked = request(prompt=range(40), max_tokens=10)
    truth = alone(asked)
    core.add(asked, epoch=1, credit=FAR, now=0.0)
    for _ in range(4):
        core.step(0.0)
    core.add(asked, epoch=2, committed=tuple(truth[:2]), credit=FAR, now=0.0)
    outcome = core.step(0.0).outcomes[0]
    assert (outcome.epoch, outcome.position, outcome.cached_tokens) == (2, 42, 32)


@pytest.mark.parametrize("epoch", [1, 0])
def test_the_same_or_a_lower_epoch_is_stale(epoch):
    core, _ = engine()
    core.add(request(), epoch=1, credit=FAR, now=0.0)
    with pytest.raises(StaleError, match="epoch 1"):
        core.add(request(), epoch=epoch, credit=FAR, now=0.0)
    assert core.load().queued == 1


def test_a_cancelled_sequence_frees_everything_and_says_nothing_more():
    core, _ = engine()
    core.add(request("a", range(20), max_tokens=30), epoch=1, credit=FAR, now=0.0)
    core.add(request("b"), epoch=1, credit=FAR, now=0.0)
    core.step(0.0)
    core.cancel("a")
    core.cancel("a")
    core.cancel("b")
    core.cancel("never here")
    assert core.blocks.used == 0
    assert not core.has_work
    assert core.step(0.0).outcomes == ()


def test_a_sequence_stops_at_its_credit_and_goes_on_with_more():
    core, _ = engine()
    core.add(request(max_tokens=6), epoch=1, credit=3 + 2, now=0.0)
    answers = Answers()
    for _ in range(5):
        answers.step(core, 0.0)
    assert len(answers.ids["r"]) == 2
    core.credit("r", 4)
    assert answers.step(core, 1.0) == 0
    core.credit("r", 100)
    assert answers.drain(core, now=1.0).ids["r"] == alone(request(max_tokens=6))


def test_drafts_do_not_go_past_the_credit():
    truth = alone(request(max_tokens=8))
    core, _ = engine(speculation="always")
    core.add(request(max_tokens=8), epoch=1, credit=3 + 2, now=0.0)
    core.candidate("r", 3, tuple(truth[:6]), ("s",) * 6)
    assert core.step(0.0).outcomes[0].ids == tuple(truth[:2])


def test_30_s_at_its_credit_fail_a_sequence_as_a_slow_client():
    core, _ = engine()
    core.add(request(), epoch=1, credit=4, now=0.0)
    answers = Answers()
    for now in (0.0, 1.0, 30.9):
        answers.step(core, now)
    assert not answers.errors
    answers.step(core, 31.0)
    assert isinstance(answers.errors["r"], SlowClientError)
    assert core.blocks.used == 0


def test_a_deadline_ends_waiting_and_running_sequences():
    core, _ = engine(sequences_max=1)
    core.add(request("a", budget_s=2.0, max_tokens=100), epoch=1, credit=FAR, now=0.0)
    core.add(request("b", budget_s=1.0, priority=Priority.BATCH), epoch=1, credit=FAR, now=0.0)
    answers = Answers()
    answers.step(core, 0.5)
    answers.step(core, 1.5)
    assert list(answers.errors) == ["b"]
    answers.step(core, 2.0)
    assert isinstance(answers.errors["a"], DeadlineError)
    assert not core.has_work


def test_a_full_queue_refuses_with_a_time_to_come_back():
    core, _ = engine(sequences_max=2, waiting_max=1)
    for n in range(3):
        core.add(request(f"r{n}"), epoch=1, credit=FAR, now=0.0)
    with pytest.raises(CapacityError) as caught:
        core.add(request("r3"), epoch=1, credit=FAR, now=0.0)
    assert caught.value.retry_after_s is not None
    assert 1 <= caught.value.retry_after_s <= 30


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prompt": ()}, "no tokens"),
        ({"prompt": (VOCAB,)}, f"id {VOCAB} at position 0"),
        ({"prompt": (-1,)}, "id -1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 300}, "context of 256"),
        ({"max_tokens": 200}, "13 blocks"),
        ({"sampling": Sampling(temperature=-1)}, "temperature"),
        ({"seed": 2**64}, "seed"),
        ({"budget_s": float("nan")}, "budget_s"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_at_once(changes, says):
    core, _ = engine(blocks=12)
    with pytest.raises(RequestError, match=says):
        core.add(request(**changes), epoch=1, credit=FAR, now=0.0)
    assert not core.has_work


def test_a_poisoned_sequence_fails_alone_and_its_blocks_are_scrubbed_and_not_cached():
    runner = PagedRunner(32, poison=frozenset({47}))
    core, _ = engine(runner)
    core.add(request("bad", [*range(20), 47]), epoch=1, credit=FAR, now=0.0)
    good = request("good", (1, 2), eos_ids=frozenset({47}))
    core.add(good, epoch=1, credit=FAR, now=0.0)
    answers = Answers().drain(core)
    assert "not finite" in answers.errors["bad"].message
    assert answers.ids["good"] == alone(good)
    assert len(runner.scrubbed) == 2
    core.add(request("bad2", [*range(20), 46]), epoch=1, credit=FAR, now=0.0)
    assert core.step(0.0).outcomes[0].cached_tokens == 0


def test_garbage_that_would_poison_a_refused_row_does_not_fail_the_sequence():
    truth = alone(request(max_tokens=3))
    poison = next(token for token in range(VOCAB) if token not in truth)
    core, _ = engine(PagedRunner(32, poison=frozenset({poison})), speculation="always")
    core.add(request(max_tokens=3), epoch=1, credit=FAR, now=0.0)
    core.candidate("r", 3, (poison, poison), ("s", "s"))
    assert Answers().drain(core).ids["r"] == truth


def test_a_runner_that_raises_is_no_requests_fault_and_goes_up():
    core, _ = engine(PagedRunner(32, broken=True))
    core.add(request("a"), epoch=1, credit=FAR, now=0.0)
    with pytest.raises(RuntimeError, match="the device is gone"):
        core.step(0.0)


def test_a_block_whose_last_token_is_not_computed_is_never_shared():
    core, _ = engine()
    core.add(request("a", tuple(range(15)), max_tokens=9), epoch=1, credit=FAR, now=0.0)
    (first,) = core.step(0.0).outcomes
    core.cancel("a")
    prompt = (*range(15), *first.ids, 90, 91)
    core.add(request("b", prompt, max_tokens=2), epoch=1, credit=FAR, now=0.0)
    assert core.step(0.0).outcomes[0].cached_tokens == 0


def test_blocks_that_only_refused_drafts_needed_are_given_back():
    asked = request("a", tuple(range(15)), max_tokens=9)
    truth = alone(asked)
    core, _ = engine(speculation="always")
    core.add(asked, epoch=1, credit=FAR, now=0.0)
    wrong = tuple((token + 1) % VOCAB for token in truth[:4])
    core.candidate("a", 15, wrong, ("s",) * 4)
    (outcome,) = core.step(0.0).outcomes
    assert outcome.verified[0][1].verified == 4
    assert core.blocks.used == 1


def test_the_first_outcome_alone_tells_cached_tokens_and_times():
    core, _ = engine()
    core.add(request(), epoch=1, credit=FAR, now=1.0)
    first, second = core.step(3.0).outcomes[0], core.step(3.1).outcomes[0]
    assert first.queue_ms == pytest.approx(2000.0)
    assert first.started_s == 3.0
    assert first.cached_tokens == 0
    assert (second.queue_ms, second.started_s, second.cached_tokens) == (None, None, None)


def test_logprobs_stand_beside_the_ids_that_are_committed():
    asked = request(max_tokens=4, sampling=Sampling(logprobs=2))
    truth = alone(asked)
    core, _ = engine(speculation="always")
    core.add(asked, epoch=1, credit=FAR, now=0.0)
    wrong = (truth[2] + 1) % VOCAB
    core.candidate("r", 3, (*truth[:2], wrong), ("s",) * 3)
    outcome = core.step(0.0).outcomes[0]
    assert outcome.ids == tuple(truth[:3])
    assert len(outcome.logprobs) == 3
    assert all(len(one.top) == 2 for one in outcome.logprobs)


def test_load_counts_who_runs_and_waits_and_what_steps_took():
    core, _ = engine(sequences_max=1)
    core.add(request("a", range(30)), epoch=1, credit=FAR, now=0.0)
    core.add(request("b", range(9)), epoch=1, credit=FAR, now=0.0)
    core.step(0.0)
    load = core.load()
    assert (load.running, load.queued, load.sequences_max) == (1, 1, 9)
    Answers().drain(core)
    load = core.load()
    assert load.step_ms == ((1, 21.0),)
    assert load.prefill_ms_per_token > 0
    assert load.steps == core.steps


def test_next_positions_name_those_that_can_take_a_hint():
    core, _ = engine()
    core.add(request("last", max_tokens=1), epoch=1, credit=FAR, now=0.0)
    core.add(request("long", range(100), max_tokens=9), epoch=1, credit=FAR, now=0.0)
    core.add(request("ready"), epoch=1, credit=FAR, now=0.0)
    core.add(request("stalled"), epoch=1, credit=4, now=0.0)
    assert core.next_positions() == {"ready": 3}


def test_a_flood_of_hints_gets_one_row_limit_and_every_id_of_it_is_counted():
    asked = request(max_tokens=30)
    truth = alone(asked)
    core, runner = engine(speculation="always", hint_ids_max=3)
    core.add(asked, epoch=1, credit=FAR, now=0.0)
    core.add(request("p", range(20)), epoch=1, credit=0, now=0.0, prefill_only=True)
    for _ in range(1000):
        core.candidate("r", 3, tuple(truth[:5]), ("s",) * 5)  # 3 may have a row, if they stay
        core.candidate("r", 4, (1, 2), ("s", "s"))  # another place
        core.candidate("nobody", 3, (1,), ("s",))
        core.candidate("r", 3, (VOCAB, 1), ("s", "s"))  # no id
        core.candidate("p", 20, (1,), ("s",))  # takes none
    core.step(0.0)
    assert runner.rows == [3 + 3 + 20]
    assert core.counts.hint_ids_offered == 1000 * (5 + 2 + 1 + 2 + 1)
    assert core.counts.hint_ids_dropped == core.counts.hint_ids_offered - 3


@pytest.mark.parametrize(
    "limits",
    [
        {"step_tokens_max": 5, "prefill_chunk": 24},
        {"step_tokens_max": 40, "prefill_chunk": 1},
        {"step_tokens_max": 2, "prefill_chunk": 1, "sequences_max": 1},
        {"step_max_ms": 1e-9, "step_alone_max_ms": 1e-9},
    ],
)
def test_a_budget_below_a_block_is_slow_and_gets_everybody_on(limits):
    core, runner = engine(speculation="off", **limits)
    asked = [request(f"r{n}", range(n, n + 30), max_tokens=9) for n in range(6)]
    for one in asked:
        core.add(one, epoch=1, credit=FAR, now=0.0)
    assert Answers().drain(core).ids == {one.id: alone(one) for one in asked}
    assert max(runner.rows) <= limits.get("step_tokens_max", 40)


@pytest.mark.parametrize(
    "name", ["prefill_chunk", "step_tokens_max", "sequences_max", "blocks", "context_max"]
)
def test_a_limit_of_0_is_a_configuration_error_that_names_it(name):
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        engine(**{name: 0})


@pytest.mark.parametrize(
    "name",
    ["ageing_slas", "copy_bytes_per_s", "handover_s", "preemptions_max", "handovers_max"],
)
def test_a_limit_below_0_is_a_configuration_error_that_names_it(name):
    with pytest.raises(ConfigError, match=f"{name} is -1"):
        engine(**{name: -1})


def test_a_sequence_that_fills_the_whole_pool_ends_and_one_id_more_is_refused():
    core, _ = engine(blocks=4, context_max=100, speculation="off")
    one = request("r", range(40), max_tokens=24)
    core.add(one, epoch=1, credit=FAR, now=0.0)
    core.add(request("other", range(9, 49), max_tokens=24), epoch=1, credit=FAR, now=0.0)
    with pytest.raises(RequestError, match="65 tokens need 5 blocks of KV, and there are 4"):
        core.add(request("more", range(40), max_tokens=25), epoch=1, credit=FAR, now=0.0)
    assert Answers().drain(core).ids["r"] == alone(one)


def test_a_sequence_that_turns_bad_in_mid_answer_fails_alone_and_leaves_nothing_behind():
    """Logits that are not finite after some ids: the batch goes on, its blocks are cleared."""
    asked = request("bad", range(20), max_tokens=30, sampling=Sampling(temperature=0.0))
    truth = alone(asked)
    poison = truth[4]
    assert poison not in truth[:4]
    good = [request(f"g{n}", (n, 3, 4), max_tokens=30, eos_ids=frozenset({poison})) for n in (1, 2)]
    runner = PagedRunner(32, poison=frozenset({poison}))
    core, _ = engine(runner, speculation="off", host_blocks=8)
    distrusted: list[bytes] = []
    core.distrust = distrusted.extend
    for one in (asked, *good):
        core.add(one, epoch=1, credit=FAR, now=0.0)
    answers = Answers()
    while "bad" not in answers.errors:
        answers.step(core, 0.0)
    assert "not finite" in answers.errors["bad"].message
    assert answers.ids["bad"] == truth[:5]
    assert len(runner.scrubbed) == len(set(runner.scrubbed)) == 2
    assert len(distrusted) == 1
    assert all(core.read(name) is None for name in distrusted)
    answers.drain(core)
    assert {one.id: answers.ids[one.id] for one in good} == {one.id: alone(one) for one in good}
    assert core.blocks.used == 0


def test_limits_that_contradict_each_other_are_a_configuration_error():
    with pytest.raises(ConfigError, match="step_tokens_max is 4"):
        engine(step_tokens_max=4, sequences_max=4)
