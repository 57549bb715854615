"""Classes that do not decode for a while: who for, and for how long."""

import pytest
from doubles import Answers, alone, engine, request
from hypothesis import given
from hypothesis import strategies as st

from firstlight.shared.engine.plan import Slas, StepPlan
from firstlight.shared.engine.rests import Rests, Unbegun
from firstlight.shared.types import Priority

STEP_MS = 100.0
LATE = Unbegun(Priority.INTERACTIVE, late=True)
IN_TIME = Unbegun(Priority.INTERACTIVE, late=False)
FAR = 10_000


def rested_s(decoding, unbegun, *, steps=200):
    """How long a class rests before it decodes again, in steps of 100 ms."""
    rests = Rests(Slas(critical_s=0.5, interactive_s=1.0, batch_s=8.0))
    for step in range(steps):
        if not rests.resting(decoding, unbegun, STEP_MS, step * 0.1 + 1e-6):
            return step / 10
    raise AssertionError("it never decodes again")


@pytest.mark.parametrize(
    ("decoding", "late", "rest_s"), [(1, 1, 1.0), (1, 9, 1.0), (2, 1, 0.5), (9, 1, 0.1), (11, 1, 0)]
)
def test_a_class_rests_for_the_share_of_its_promise_that_its_late_ones_are(decoding, late, rest_s):
    found = rested_s([Priority.INTERACTIVE] * decoding, [LATE] * late)
    assert found == pytest.approx(rest_s, abs=0.11)
    assert found <= rest_s


def test_nobody_rests_for_equals_that_are_in_time():
    assert rested_s([Priority.INTERACTIVE], [IN_TIME] * 9) == 0


def test_a_lower_class_rests_at_once_and_for_all_that_it_is_promised():
    assert 7.9 <= rested_s([Priority.BATCH] * 20, [IN_TIME]) <= 8.0


def test_a_higher_class_never_rests_for_a_lower_one():
    late = Unbegun(Priority.BATCH, late=True)
    assert rested_s([Priority.INTERACTIVE], [late] * 99) == 0


def test_only_the_lower_class_rests_where_two_decode():
    rests = Rests(Slas())
    assert rests.resting([Priority.INTERACTIVE, Priority.BATCH], [IN_TIME], STEP_MS, 0.0) == {
        Priority.BATCH
    }


def test_after_a_rest_a_class_decodes_once_and_may_rest_again():
    rests = Rests(Slas(interactive_s=1.0))
    decoded = [
        quarter
        for quarter in range(12)
        if not rests.resting([Priority.INTERACTIVE], [LATE], 250.0, quarter / 4)
    ]
    assert decoded == [4, 9]


@given(
    steps=st.lists(
        st.tuples(
            st.floats(0.001, 0.25),
            st.lists(st.sampled_from(Priority), max_size=6),
            st.lists(st.builds(Unbegun, st.sampled_from(Priority), st.booleans()), max_size=6),
        ),
        max_size=60,
    )
)
def test_a_rest_with_its_last_step_is_no_longer_than_what_the_class_is_promised(steps):
    """Steps take no longer than what was told."""
    slas, now, since_s = Slas(), 0.0, dict[int, float]()
    rests = Rests(slas)
    for step_s, decoding, unbegun in steps:
        resting = rests.resting(decoding, unbegun, step_s * 1000, now)
        assert resting <= set(decoding)
        since_s = {level: since_s.get(level, now) for level in resting}
        now += step_s
        for level, begun_s in since_s.items():
            assert now - begun_s <= slas.of(level) + 1e-9


def names(plan: StepPlan) -> list[str]:
    return [one.request for one in plan.sequences]


def test_a_batch_decode_waits_while_an_interactive_prompt_has_not_begun():
    core, runner = engine(speculation="off")
    batch = request("batch", max_tokens=9, priority=Priority.BATCH)
    core.add(batch, epoch=1, credit=FAR, now=0.0)
    answers = Answers()
    for now in (0.0, 0.1):
        answers.step(core, now)
    core.add(request("now", max_tokens=2), epoch=1, credit=FAR, now=0.2)
    answers.step(core, 0.2)
    answers.step(core, 0.3)
    assert [names(plan) for plan in runner.plans[-2:]] == [["now"], ["now", "batch"]]
    answers.drain(core, now=0.4)
    assert answers.ids["batch"] == alone(batch)


@pytest.mark.parametrize(("places", "planned"), [(3, ["late", "long"]), (2, ["decodes", "long"])])
def test_who_decodes_rests_for_a_late_one_if_there_is_a_place_for_it(places, planned):
    """A long prompt is being computed; behind it one waits for two seconds."""
    core, _ = engine(speculation="off", sequences_max=places, prefill_chunk=16)
    core.add(request("decodes", max_tokens=20), epoch=1, credit=FAR, now=0.0)
    core.step(0.0)
    core.add(request("long", range(100)), epoch=1, credit=FAR, now=0.1)
    core.step(0.1)
    core.add(request("late"), epoch=1, credit=FAR, now=0.2)
    assert names(core.step(2.3).plan) == planned


def test_nobody_rests_for_a_prompt_that_is_being_computed_however_late_it_is():
    core, _ = engine(speculation="off", prefill_chunk=16)
    core.add(request("decodes", max_tokens=20), epoch=1, credit=FAR, now=0.0)
    core.step(0.0)
    core.add(request("long", range(100)), epoch=1, credit=FAR, now=0.1)
    for now in (0.1, 5.0, 10.0):
        assert names(core.step(now).plan) == ["decodes", "long"]


def test_those_who_rest_decode_where_nobody_they_rest_for_finds_blocks():
    """4 blocks, of which the one that decodes has 3; the late one needs 2."""
    core, _ = engine(blocks=4, context_max=64, host_blocks=0, speculation="off")
    core.add(request("decodes", range(40), max_tokens=20), epoch=1, credit=FAR, now=0.0)
    for now in (0.0, 0.1, 0.2):
        core.step(now)
    core.add(request("late", range(60, 90)), epoch=1, credit=FAR, now=0.2)
    for now in (3.0, 3.1):
        assert names(core.step(now).plan) == ["decodes"]
