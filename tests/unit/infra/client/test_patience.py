"""When a client asks again, and when it gives up."""

from random import Random

import pytest

from firstlight.infra.client.patience import (
    ATTEMPTS_MAX,
    IDLE_ATTEMPTS_MAX,
    PAUSE_MAX_S,
    WITHOUT_PROGRESS_MAX_S,
    Patience,
    Standing,
)

TOLD = Standing(begun=True, can_resume=True, repeatable=True, edges=2)
NOTHING = Standing(begun=False, can_resume=False, repeatable=True, edges=2)


class Upper(Random):
    def uniform(self, a: float, b: float) -> float:
        return b


def patience() -> Patience:
    return Patience(0.0, Upper())


def test_the_other_edge_is_asked_at_once_and_then_with_growing_pauses() -> None:
    one = patience()
    waits = [one.lost(TOLD, 1.0).wait_s for _ in range(IDLE_ATTEMPTS_MAX)]
    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0, PAUSE_MAX_S]


def test_the_only_edge_is_asked_again_after_a_pause() -> None:
    alone = Standing(begun=True, can_resume=True, repeatable=True, edges=1)
    assert patience().lost(alone, 1.0).wait_s == 0.5


def test_attempts_that_bring_nothing_are_limited() -> None:
    one = patience()
    for _ in range(IDLE_ATTEMPTS_MAX):
        assert one.lost(TOLD, 1.0).go_on
    given_up = one.lost(TOLD, 1.0)
    assert not given_up.go_on
    assert given_up.reason == f"{IDLE_ATTEMPTS_MAX} further attempts brought nothing"


def test_progress_gives_new_attempts_up_to_a_number_in_all() -> None:
    one = patience()
    asked = 1
    while one.lost(TOLD, float(asked)).go_on:
        one.progress(float(asked))
        asked += 1
        assert asked <= ATTEMPTS_MAX
    assert asked == one.attempts == ATTEMPTS_MAX


def test_who_had_nothing_for_too_long_gives_up() -> None:
    one = patience()
    one.progress(100.0)
    assert one.lost(TOLD, 100.0 + WITHOUT_PROGRESS_MAX_S).go_on
    assert one.lost(TOLD, 100.1 + WITHOUT_PROGRESS_MAX_S).reason == "nothing came for 30 s"


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        (Standing(True, False, True, 2), "what came of it cannot be gone on with"),
        (Standing(False, False, False, 2), "it may have been done already"),
        (Standing(False, False, True, 1), "there is no other edge to ask"),
    ],
)
def test_what_cannot_be_asked_again_is_not(where: Standing, reason: str) -> None:
    step = patience().lost(where, 0.0)
    assert not step.go_on
    assert step.reason.startswith(reason)


def test_what_has_not_begun_is_asked_for_at_another_edge() -> None:
    assert patience().lost(NOTHING, 0.0).go_on
