"""The example of AIBrix's least_latency_test.go: four pods, the first is the fastest.

p1 10 s for 10 prompt tokens and 10 s for 100 of an answer, p2 21 s for 20 and for 200, p3 31 s for
30 and for 300, p4 41 s for 40 and for 400. Means over all pods: 25 and 250. So p1 is at 25 + 25 s,
p2 at 26.25 + 26.25, p3 at 25.83 + 25.83, p4 at 25.63 + 25.63; the queue of 5 s, alike on all, is
left out.
"""

from dataclasses import replace

import pytest
from policy_bed import ask, picks, seen

from firstlight.infra.sim.policies.least_latency import (
    LeastLatency,
    decode_ms_per_token,
    latency_ms,
)

PODS = [
    seen(pod, prefill_ms_per_token=seconds * 1e3 / prompt, step_ms=((1, seconds * 1e3 / answer),))
    for pod, seconds, prompt, answer in [
        (1, 10, 10, 100),
        (2, 21, 20, 200),
        (3, 31, 30, 300),
        (4, 41, 40, 400),
    ]
]


def test_latency_is_prefill_and_decode_of_a_mean_request() -> None:
    latencies_s = [latency_ms(pod, 25.0, 250.0) / 1e3 for pod in PODS]
    assert latencies_s == pytest.approx([50.0, 52.5, 51.6667, 51.25], abs=1e-4)


def test_the_fastest_pod_is_taken() -> None:
    rule = LeastLatency()
    rule.sent(ask(tokens=25, answer_tokens=250), 1)
    assert picks(rule, ask(), PODS) == {1}


def test_before_anything_was_served_ten_and_a_hundred_tokens_are_guessed() -> None:
    long_prefill = seen(1, prefill_ms_per_token=10.0, step_ms=((1, 1.0),))  # 10·10 + 100·1
    long_decode = seen(2, prefill_ms_per_token=1.0, step_ms=((1, 2.0),))  # 10·1 + 100·2
    assert picks(LeastLatency(), ask(), [long_prefill, long_decode]) == {1}


def test_the_length_of_this_request_does_not_matter() -> None:
    rule = LeastLatency()
    rule.sent(ask(tokens=10, answer_tokens=100), 1)
    long_prefill = seen(1, prefill_ms_per_token=10.0, step_ms=((1, 1.0),))
    long_decode = seen(2, prefill_ms_per_token=1.0, step_ms=((1, 2.0),))
    assert picks(rule, ask(tokens=10**6), [long_prefill, long_decode]) == {1}


def test_a_queue_counts() -> None:
    servers = [seen(0, queued_prefill_tokens=9000), seen(1, queued_prefill_tokens=8000)]
    assert picks(LeastLatency(), ask(), servers) == {1}


@pytest.mark.parametrize(("running", "step_ms"), [(0, 20.0), (8, 30.0), (9, 60.0), (99, 60.0)])
def test_a_step_takes_what_the_table_says_for_as_many_rows(running: int, step_ms: float) -> None:
    assert decode_ms_per_token(seen(0, running=running)) == step_ms


def test_a_server_without_a_table_decodes_in_no_time() -> None:
    assert decode_ms_per_token(replace(seen(0), step_ms=())) == 0.0
