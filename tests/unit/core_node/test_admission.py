"""What a core refuses, and in which words."""

from dataclasses import replace
from math import inf, nan

import pytest

from firstlight.core_node.admission import Offer, check_open
from firstlight.shared.errors import DeadlineError, FirstlightError, NotFoundError, RequestError
from firstlight.shared.types import Request, Sampling

OFFER = Offer(("smol",), "abc123", vocab=1000, context_max=64)
GOOD = Request(
    id="req-1:0",
    model="smol",
    tokenizer_hash="abc123",
    salt=bytes(16),
    prompt=(1, 2, 3),
    sampling=Sampling(),
    seed=2**64 - 1,
    choice=0,
    max_tokens=61,
    eos_ids=frozenset({2}),
)


def test_a_request_that_fits_exactly_passes() -> None:
    check_open(GOOD, 1, (), OFFER)


def test_a_continued_request_passes() -> None:
    check_open(GOOD, 2, tuple(range(10, 70)), OFFER)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": ""}, "request id ''"),
        ({"id": "a/b"}, "'a/b'"),
        ({"id": "a\nb"}, "request id"),
        ({"id": "x" * 129}, "1 to 128"),
        ({"choice": 128}, "choice 128"),
        ({"salt": b"short"}, "salt of 5 bytes"),
        ({"tokenizer_hash": "zzz"}, "'zzz', but smol here has abc123"),
        ({"prompt": ()}, "prompt has no ids"),
        ({"prompt": (1, 1000)}, "prompt[1] is 1000"),
        ({"eos_ids": frozenset({1000})}, "eos_ids[0] is 1000"),
        ({"eos_ids": frozenset(range(65))}, "65 eos ids"),
        ({"max_tokens": 0}, "max_tokens 0"),
        ({"max_tokens": 62}, "are 65, but the context of smol is 64"),
        ({"sampling": Sampling(temperature=nan)}, "temperature"),
        ({"sampling": Sampling(top_p=0.0)}, "top_p"),
        ({"sampling": Sampling(logit_bias=((1000, 1.0),))}, "1000"),
        ({"budget_s": nan}, "budget_s nan"),
        ({"budget_s": inf}, "budget_s inf"),
    ],
)
def test_a_wrong_value_is_refused_and_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_open(replace(GOOD, **change), 1, (), OFFER)  # type: ignore[arg-type]
    assert words in caught.value.message


def test_an_unknown_model_is_not_found_and_the_message_stays_short() -> None:
    with pytest.raises(NotFoundError) as caught:
        check_open(replace(GOOD, model="m" * 100_000), 1, (), OFFER)
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("budget_s", [0.0, -1.0])
def test_no_time_left_is_a_missed_deadline(budget_s: float) -> None:
    with pytest.raises(DeadlineError, match="no time is left"):
        check_open(replace(GOOD, budget_s=budget_s), 1, (), OFFER)


@pytest.mark.parametrize(
    ("epoch", "committed", "words"),
    [
        (0, (), "epoch 0"),
        (1, (5,) * 61, "61 ids committed of max_tokens 61"),
        (1, (5, 1000), "committed[1] is 1000"),
        (1, (5, 2, 5), "committed[1] is 2, which ends the answer"),
    ],
)
def test_a_continuation_that_cannot_be_is_refused(
    epoch: int, committed: tuple[int, ...], words: str
) -> None:
    with pytest.raises(FirstlightError) as caught:
        check_open(GOOD, epoch, committed, OFFER)
    assert words in caught.value.message
