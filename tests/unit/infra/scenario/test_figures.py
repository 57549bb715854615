"""What rows come to, and what they are held against."""

from typing import Any

import pytest

from firstlight.infra.scenario.figures import FIGURES, Answers, Outcome, Row
from firstlight.infra.scenario.limits import judged
from firstlight.infra.scenario.loads import incomplete
from firstlight.infra.scenario.scenario import LoadSpec


def outcome(
    number: int = 0, *, due_s: float = 1.0, at_s: tuple[float, ...] = (), **more: Any
) -> Outcome:
    made = Outcome(number, due_s, **more)
    for count, now in enumerate(at_s, 1):
        made.seen(tuple(range(count)), now)
    return made


def load(**more: Any) -> LoadSpec:
    return LoadSpec.model_validate({"name": "row", "at": "user", "edges": ["edge"], **more})


def test_a_stream_counts_from_when_it_was_due_and_its_gap_is_its_longest_pause() -> None:
    row = Row([outcome(at_s=(1.25, 1.5, 2.5, 2.75))])
    assert row.figure("ttft_p50_ms") == 250.0
    assert row.figure("gap_max_ms") == 1000.0
    assert row.figure("tokens_per_s") == 2.0
    assert row.figure("total_tokens_per_s") == pytest.approx(4 / 1.75)


def test_what_failed_has_no_time_but_its_pause_and_its_failure_count() -> None:
    good, bad = outcome(at_s=(1.1, 1.2)), outcome(1, at_s=(1.1, 4.1), error="lost")
    row = Row([good, bad])
    assert (row.figure("asked"), row.figure("answered"), row.figure("failed")) == (2, 1, 1)
    assert row.figure("success") == 0.5
    assert row.figure("ttft_p95_ms") == pytest.approx(100.0)
    assert row.figure("gap_max_ms") == pytest.approx(3000.0)
    assert row.figure("gap_p99_ms") == pytest.approx(100.0)


def test_counts_are_of_requests() -> None:
    row = Row([outcome(moved=2), outcome(1, moved=1, resumed=3), outcome(2, different=True)])
    assert [row.figure(name) for name in ("moved", "resumed", "different")] == [2, 1, 1]


def test_hints_are_told_as_the_share_of_verified_ones_that_were_accepted() -> None:
    row = Row([outcome(hints_verified=10, hints_accepted=6), outcome(1)])
    assert row.figure("hints_accepted") == 0.6
    assert Row([outcome()]).figure("hints_accepted") is None


def test_a_row_of_nothing_has_counts_and_no_times() -> None:
    found = {name: Row().figure(name) for name in FIGURES}
    assert found["asked"] == 0
    assert [found[name] for name in ("success", "ttft_p50_ms", "gap_max_ms")] == [None, None, None]


def test_all_have_to_be_answered_unless_a_row_says_otherwise() -> None:
    rows = {"row": Row([outcome(at_s=(1.1,)), outcome(1, error="lost")])}
    assert judged(load(), rows).missed == ("success: 0.5, expected at least 1",)
    assert judged(load(keep={"success": {"at_least": 0.5}}), rows).missed == ()


def test_a_limit_is_told_from_the_bound() -> None:
    rows = {"near": Row([outcome(at_s=(1.02,))]), "row": Row([outcome(at_s=(1.18,))])}
    bound = {"row": "near", "plus": 150}
    near = load(bound=bound, keep={"ttft_p50_ms": {"at_most": {"plus": 10}}})
    assert judged(near, rows).missed == ()
    assert judged(near, rows).bound == pytest.approx(170.0)
    strict = load(bound=bound, keep={"ttft_p50_ms": {"at_most": {"times": 1.05}}})
    assert judged(strict, rows).missed == ("ttft_p50_ms: 180, expected at most 178.5",)
    low = load(bound=bound, keep={"ttft_p50_ms": {"at_least": {"plus": 20}}})
    assert judged(low, rows).missed == ("ttft_p50_ms: 180, expected at least 190",)


def test_what_was_not_measured_keeps_nothing() -> None:
    bound = {"row": "near"}
    row = load(bound=bound, keep={"ttft_p50_ms": {"at_most": {}}, "success": {"at_least": 0}})
    rows = {"row": Row([outcome(at_s=(1.1,))]), "near": Row()}
    assert judged(row, rows).missed == ("ttft_p50_ms: what it is told from was not measured",)
    empty = load(keep={"gap_max_ms": {"at_most": 5}, "success": {"at_least": 0}})
    assert judged(empty, {"row": Row()}).missed == (
        "success: nothing was measured, expected at least 0",
        "gap_max_ms: nothing was measured, expected at most 5",
    )


def test_one_that_failed_of_very_many_is_not_rounded_away() -> None:
    row = Row([outcome(n, at_s=(1.1,)) for n in range(999)] + [outcome(999, error="lost")])
    assert judged(load(), {"row": row}).missed == ("success: 0.999, expected at least 1",)


def test_a_figure_may_have_several_limits_one_of_them_another_row() -> None:
    rows = {
        name: Row([outcome(at_s=at_s)]) for name, at_s in (("row", (1.1, 1.6)), ("off", (1.1, 1.2)))
    }
    slow = load(
        keep={"tokens_per_s": [{"at_least": 1}, {"at_least": {"row": "off", "times": 0.97}}]}
    )
    assert judged(slow, rows).missed == ("tokens_per_s: 2, expected at least 9.7",)


def test_ids_that_came_with_the_first_text_were_not_waited_for() -> None:
    made = Outcome(0, 1.0)
    made.seen((1, 2, 3), 1.5)
    made.seen((1, 2, 3, 4), 2.0)
    made.seen((1, 2, 3, 4, 5), 2.5)
    assert made.tokens_per_s == 2.0


@pytest.mark.parametrize(("ids", "whole"), [(16, True), (15, False), (17, False), (0, False)])
def test_an_answer_with_other_than_what_was_asked_for_is_a_failure(ids: int, whole: bool) -> None:
    assert (incomplete(ids, load(max_tokens=16)) is None) == whole


def test_an_answer_is_compared_with_the_first_to_the_same_question() -> None:
    answers = Answers()

    def different(label: str, *given: tuple[int, ...]) -> list[bool]:
        row = Row([Outcome(number, 0.0, ids=ids) for number, ids in enumerate(given)])
        answers.compare(label, row)
        return [one.different for one in row.outcomes]

    assert different("some", (1, 2, 3), (4, 5)) == [False, False]
    assert different("some", (1, 2, 3), (4, 6)) == [False, True]
    assert different("some", (1, 2), (4, 5, 6)) == [False, False]
    assert different("other", (9,), (9,)) == [False, False]
    failed = Row([Outcome(0, 0.0, ids=(7,), error="lost")])
    answers.compare("some", failed)
    assert not failed.outcomes[0].different
