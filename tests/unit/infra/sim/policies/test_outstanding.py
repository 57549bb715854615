"""Tokens of what was sent and has not ended."""

import pytest
from policy_bed import seen

from firstlight.infra.sim.policies import outstanding
from firstlight.infra.sim.policies.outstanding import Outstanding


def test_a_prompt_is_to_be_computed_until_its_first_token() -> None:
    mine = Outstanding()
    mine.sent(1, 7, 1000, 600)
    assert mine.prefill_tokens(seen(7)) == 600
    mine.first_token(1)
    assert mine.prefill_tokens(seen(7)) == 0
    assert mine.tokens(seen(7, own_in_flight=1)) == 1000


def test_nothing_is_left_of_what_ended() -> None:
    mine = Outstanding()
    mine.sent(1, 7, 1000, 600)
    mine.ended(1)
    assert (mine.tokens(seen(7)), mine.prefill_tokens(seen(7))) == (0, 0)


def test_an_end_or_a_first_token_of_nobody_changes_nothing() -> None:
    mine = Outstanding()
    mine.sent(1, 7, 1000, 600)
    mine.first_token(2)
    mine.ended(2)
    mine.first_token(1)
    mine.first_token(1)
    assert (mine.tokens(seen(7)), mine.prefill_tokens(seen(7))) == (1000, 0)


def test_what_is_sent_again_has_left_where_it_was() -> None:
    mine = Outstanding()
    mine.sent(1, 7, 1000, 600)
    mine.sent(1, 9, 1000, 1000)
    assert (mine.tokens(seen(7)), mine.tokens(seen(9))) == (0, 1000)
    assert (mine.prefill_tokens(seen(7)), mine.prefill_tokens(seen(9))) == (0, 1000)


def test_a_server_has_at_least_what_it_says() -> None:
    mine = Outstanding()
    mine.sent(1, 7, 1000, 600)
    assert mine.prefill_tokens(seen(7, queued_prefill_tokens=5000)) == 5000


def test_requests_of_others_count_at_the_mean_of_own_ones() -> None:
    mine = Outstanding()
    mine.sent(1, 7, 1000, 1000)
    mine.sent(2, 9, 3000, 3000)
    assert mine.tokens(seen(7, waiting=1, running=2, own_in_flight=1)) == 1000 + 2 * 2000


def test_beyond_the_limit_the_oldest_is_taken_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outstanding, "OPEN_MAX", 2)
    mine = Outstanding()
    for request in (1, 2, 3):
        mine.sent(request, 7, 10**request, 10**request)
    assert mine.tokens(seen(7)) == 1100
    assert mine.prefill_tokens(seen(7)) == 1100
