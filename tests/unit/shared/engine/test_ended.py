"""Requests that come with all of their answer: none of it is computed, the next step tells them."""

import pytest
from doubles import engine, request

from firstlight.shared.errors import CapacityError, StaleError
from firstlight.shared.types import FinishReason

FAR = 10_000


def test_a_request_that_came_with_its_end_is_replaced_by_a_higher_epoch_and_by_no_lower_one():
    core, _ = engine()
    core.add(request(max_tokens=2), epoch=5, committed=(7, 8), credit=FAR, now=0.0)
    with pytest.raises(StaleError, match="with epoch 5, not below 5"):
        core.add(request(max_tokens=2), epoch=5, credit=FAR, now=0.0)
    core.add(request(max_tokens=2), epoch=6, committed=(7,), credit=FAR, now=0.0)
    (outcome,) = core.step(0.0).outcomes
    assert (outcome.epoch, outcome.position, outcome.finish) == (6, 4, FinishReason.LENGTH)
    assert not core.has_work


def test_requests_that_came_with_their_end_are_as_many_at_most_as_others_until_a_step_tells_them():
    core, _ = engine(sequences_max=2, waiting_max=3)
    for number in range(5):
        core.add(request(f"r{number}", max_tokens=1), epoch=1, committed=(7,), credit=9, now=0.0)
    with pytest.raises(CapacityError, match="5 have ended before they began"):
        core.add(request("more", max_tokens=1), epoch=1, committed=(7,), credit=9, now=0.0)
    core.add(request("new", max_tokens=1), epoch=1, credit=9, now=0.0)
    assert len(core.step(0.0).outcomes) == 6
