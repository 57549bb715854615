"""What the demo concludes from what it saw."""

import json
from dataclasses import replace
from typing import Any

import pytest

from firstlight.infra.chat import Asked
from firstlight.infra.client.ids import IdsTold
from firstlight.infra.client.response import Marks
from firstlight.infra.demo import Answers, Verdict, times_table
from firstlight.infra.reply import Reply

GOOD = Verdict(protocol="h3", same_text=True, moved=1, seconds=30.0, left_over=0)


def asked(text: str = "a", ids: tuple[int, ...] = (1,), **details: Any) -> Asked:
    reply = Reply(
        text=text, told=IdsTold(list(ids)), details={"protocol": "h3", "moved": 0, **details}
    )
    return Asked(reply, {}, 0.0, Marks(0.0), 1.0)


def test_all_as_it_must_be_has_no_failures() -> None:
    assert GOOD.failures() == []


@pytest.mark.parametrize(
    "change",
    [{"protocol": "h2"}, {"same_text": False}, {"moved": 0}, {"moved": 2}, {"left_over": 1}],
)
def test_each_deviation_is_a_failure_that_names_it(change: dict[str, Any]) -> None:
    (failure,) = replace(GOOD, **change).failures()
    assert next(iter(change)) in failure


def test_a_verdict_over_same_answers_is_good() -> None:
    verdict = Answers(asked("q"), asked(), asked(moved=1)).verdict(30.0, 0)
    assert verdict == GOOD


def test_equal_text_of_different_ids_is_not_the_same() -> None:
    answers = Answers(asked("q"), asked(ids=(1, 2)), asked(ids=(3,), moved=1))
    assert not answers.verdict(30.0, 0).same_text


def test_one_answer_over_another_protocol_shows() -> None:
    verdict = Answers(asked(protocol="h2"), asked(), asked(moved=1)).verdict(30.0, 0)
    assert verdict.protocol == "h2+h3"


def test_the_table_of_times_bears_parts_that_are_not_known() -> None:
    assert times_table(asked().summary()).row_count == 12


def test_a_summary_is_json_with_all_its_keys() -> None:
    summary = json.loads(json.dumps(asked().summary()))
    assert {"text", "token_ids", "finish_reason", "seed", "class", "protocol", "edge"} < set(
        summary
    )
