"""Which drafts get rows."""

from doubles import request, sequence

from firstlight.shared.drafting.controller import Controller
from firstlight.shared.drafting.steptimes import StepTimes
from firstlight.shared.engine.kv.manager import KvManager
from firstlight.shared.engine.plan import EngineConfig
from firstlight.shared.engine.scheduler import Work
from firstlight.shared.engine.speculation import Draft, allot

CHEAP = StepTimes(((1, 36.0), (2, 36.0), (4, 37.0), (8, 38.0)))
DEAR = StepTimes(((1, 10.0), (2, 20.0), (4, 40.0), (8, 80.0)))


def ready(name: str, *, max_tokens: int = 50) -> Work:
    """A decode: everything but the last id is computed."""
    one = sequence(request(name, range(15), max_tokens=max_tokens))
    one.computed = 14
    one.table = [0]
    return Work(one, 1)


def drafted(
    works: list[Work], controller: Controller, times: StepTimes, **changes: object
) -> list[int]:
    drafts = {
        work.sequence.id: Draft(work.sequence.known, (1, 2, 3, 4), ("s",) * 4) for work in works
    }
    kv = changes.pop("kv", KvManager(100))
    config = EngineConfig(**changes)  # type: ignore[arg-type]
    allot(works, drafts, controller, times, kv, config)  # type: ignore[arg-type]
    return [len(work.drafted) for work in works]


def test_a_trusted_source_gets_rows_where_rows_are_cheap():
    assert drafted([ready("a")], Controller({"s": 0.9}), CHEAP) == [4]


def test_no_rows_where_a_row_costs_as_much_as_a_step():
    controller = Controller({"s": 0.9})
    controller.probes("first in sixteen")
    assert drafted([ready("a")], controller, DEAR) == [0]


def test_a_probing_request_gets_one_row_all_the_same():
    assert drafted([ready("a")], Controller({"s": 0.2}), DEAR) == [1]


def test_always_ignores_what_pays():
    assert drafted([ready("a")], Controller({"s": 0.0}), DEAR, speculation="always") == [4]


def test_the_more_trusted_sequence_gets_the_rows_first():
    controller = Controller({"s": 0.5})
    controller.probes("first in sixteen")
    works = [ready("bad"), ready("good")]
    for _ in range(30):
        controller.observe("bad", "s", False)
        controller.observe("good", "s", True)
    bad, good = drafted(works, controller, StepTimes(((2, 36.0), (4, 40.0), (8, 60.0))))
    assert bad < good


def test_a_step_that_prefills_has_no_rows_for_drafts():
    prompt = ready("prompt")
    prompt.count = 2
    assert drafted([ready("a"), prompt], Controller({"s": 0.9}), CHEAP) == [0, 0]


def test_drafts_end_where_the_gaps_of_others_would_grow_too_long():
    works, linear = [ready("a"), ready("b")], StepTimes(((2, 30.0), (4, 40.0), (10, 70.0)))
    trusting = Controller({"s": 0.99})
    assert sum(drafted(works, trusting, linear, step_max_ms=200.0)) == 8
    works = [ready("a"), ready("b")]
    assert sum(drafted(works, trusting, linear, step_max_ms=50.0)) == 8, "2.5 times what they take"
    slow = StepTimes(((2, 30.0), (4, 70.0), (6, 72.0), (10, 80.0)))
    works = [ready("a"), ready("b")]
    assert sum(drafted(works, trusting, slow, step_max_ms=50.0)) == 5, "7 rows take 74 of 75 ms"


def test_rows_left_bound_the_drafts():
    assert (
        sum(
            drafted(
                [ready("a"), ready("b")],
                Controller(),
                DEAR,
                speculation="always",
                step_tokens_max=7,
                sequences_max=2,
            )
        )
        == 5
    )


def test_no_draft_reaches_past_max_tokens():
    assert drafted([ready("a", max_tokens=3)], Controller(), DEAR, speculation="always") == [2]


def test_without_a_free_block_drafts_stay_in_the_blocks_that_are_there():
    kv = KvManager(1)
    assert kv.grow([], 1)
    assert drafted([ready("a")], Controller(), DEAR, speculation="always", kv=kv) == [1]


def test_a_chunk_that_does_not_reach_the_end_of_the_prompt_takes_no_draft():
    one = sequence(request("a", range(40)))
    assert drafted([Work(one, 16)], Controller(), CHEAP, speculation="always") == [0]
