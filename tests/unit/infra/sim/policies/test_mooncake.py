"""Algorithm 1 worked by hand: the paper has no figures for it.

A prompt of 8000 tokens at 0.1 ms each. A has 6000 of it cached and 20,000 tokens queued, B has
1000 cached and none queued, C neither. Transfers at 100 tokens/ms near, 10 far.
    A: 2000 + 200 = 2200 ms
    B: without a transfer 700 ms; with one 5000/100 + 200 = 250 ms, or from afar 500 + 200 = 700 ms
    C: without 800 ms; with 6000/100 + 200 = 260 ms
"""

from math import inf
from random import Random

import pytest
from policy_bed import ask, go, picks, seen

from firstlight.infra.sim.policies.mooncake import (
    FAR_TOKENS_PER_MS,
    NEAR_TOKENS_PER_MS,
    NEVER,
    Mooncake,
)

A = seen(0, cached_tokens=6000, queued_prefill_tokens=20_000)
B = seen(1, cached_tokens=1000)
C = seen(2)
PROMPT = ask(1, tokens=8000)


def rule(threshold: float, slo_ms: float = inf) -> Mooncake:
    return Mooncake(threshold, ttft_slo_ms=slo_ms, near_tokens_per_ms=100.0, far_tokens_per_ms=10.0)


@pytest.mark.parametrize(
    ("threshold", "times_ms"),
    [(2.0, [2200.0, 250.0, 260.0]), (6.0, [2200.0, 700.0, 260.0]), (NEVER, [2200.0, 700.0, 800.0])],
)
def test_the_estimates_of_the_example(threshold: float, times_ms: list[float]) -> None:
    conductor = rule(threshold)
    assert [conductor.ttft_ms(PROMPT, one, A) for one in (A, B, C)] == pytest.approx(times_ms)


def test_the_least_is_taken_and_told_where_to_fetch_from() -> None:
    pick = rule(2.0).pick(PROMPT, [A, B, C], Random(0))
    assert (pick.server, pick.fetch_from) == (1, 0)


def test_without_transfers_nothing_is_fetched() -> None:
    pick = rule(NEVER).pick(PROMPT, [A, B, C], Random(0))
    assert (pick.server, pick.fetch_from) == (1, None)


def test_a_transfer_from_another_region_is_slower() -> None:
    far = seen(1, cached_tokens=1000, region=1)
    assert rule(2.0).ttft_ms(PROMPT, far, A) == pytest.approx(700.0)


def test_the_best_prefix_is_never_fetched_from_itself() -> None:
    pick = rule(1.0).pick(PROMPT, [seen(0, cached_tokens=6000)], Random(0))
    assert (pick.server, pick.fetch_from) == (0, None)


def test_what_would_be_too_late_is_refused() -> None:
    assert rule(2.0, slo_ms=249.0).pick(PROMPT, [A, B, C], Random(0)).server is None
    assert rule(2.0, slo_ms=251.0).pick(PROMPT, [A, B, C], Random(0)).server == 1


def test_without_a_promise_nothing_is_refused() -> None:
    late = seen(0, queued_prefill_tokens=10**9)
    assert picks(Mooncake(), PROMPT, [late]) == {0}


def test_what_was_sent_is_in_the_queue_until_its_first_token() -> None:
    conductor = rule(2.0)
    go(conductor, PROMPT, [A, B, C])
    again = ask(2, tokens=8000)
    assert conductor.ttft_ms(again, B, A) == pytest.approx(250.0 + 200.0)
    assert conductor.pick(again, [A, B, C], Random(0)).server == 2
    conductor.first_token(PROMPT, 1, 250.0, 1.0)
    assert conductor.ttft_ms(again, B, A) == pytest.approx(250.0)


def test_transfers_take_what_peers_measured_for_that_size() -> None:
    assert pytest.approx((95.367, 9.537), abs=1e-3) == (NEAR_TOKENS_PER_MS, FAR_TOKENS_PER_MS)
