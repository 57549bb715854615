"""What a core does becomes metrics, in vLLM's words and with vLLM's meaning."""

import itertools

import pytest

from firstlight.core_node import meter as module
from firstlight.core_node.backends.backend import ABORTED, Batch, Failure
from firstlight.core_node.meter import Meter
from firstlight.shared import telemetry
from firstlight.shared.errors import DeadlineError
from firstlight.shared.types import Commit, Done, HintCount, Load

_numbers = itertools.count()


class Metered:
    """A meter of a model of its own, so that its metrics begin at zero."""

    def __init__(self) -> None:
        self.model = f"model-{next(_numbers)}"
        self.meter = Meter(self.model)

    def value(self, sample: str, **labels: str) -> float:
        labels |= {"model_name": self.model, "engine": "0"}
        return telemetry.ENGINE_REGISTRY.get_sample_value(f"vllm:{sample}", labels) or 0.0

    def times(self, name: str) -> tuple[float, float]:
        """(observations, their sum) of a histogram."""
        return self.value(f"{name}_count"), round(self.value(f"{name}_sum"), 6)


def first(handle: str = "a", *, ids: int = 1, position: int = 40, cached: int = 32) -> Commit:
    """The first commit of an answer: 0.2 s in the queue, 0.3 s of prefill."""
    return Commit(
        handle,
        1,
        position,
        tuple(range(ids)),
        b"",
        cached_tokens=cached,
        queue_ms=200.0,
        prefill_ms=300.0,
    )


def later(handle: str = "a", ids: int = 1) -> Commit:
    return Commit(handle, 1, 41, tuple(range(ids)), b"")


def test_the_gauges_are_those_of_the_load() -> None:
    made = Metered()
    made.meter.load(Load(running=3, queued=2, kv_used_share=0.25))
    assert made.value("num_requests_running") == 3
    assert made.value("num_requests_waiting") == 2
    assert made.value("kv_cache_usage_perc") == 0.25


def test_a_first_commit_tells_the_way_to_the_first_token() -> None:
    made = Metered()
    made.meter.batch(Batch((first(),), rows=8, ended_s=10.0))
    assert made.times("request_queue_time_seconds") == (1, 0.2)
    assert made.times("request_prefill_time_seconds") == (1, 0.3)
    assert made.times("time_to_first_token_seconds") == (1, 0.5)
    assert made.times("inter_token_latency_seconds") == (0, 0)


def test_prompt_tokens_are_counted_with_those_that_were_cached() -> None:
    made = Metered()
    made.meter.batch(Batch((first(position=40, cached=32), first("b", position=5, cached=0))))
    assert made.value("prompt_tokens_total") == 45
    assert made.value("prefix_cache_queries_total") == 45
    assert made.value("prefix_cache_hits_total") == 32


def test_the_latency_between_tokens_is_observed_once_a_commit_however_long_it_is() -> None:
    made = Metered()
    made.meter.batch(Batch((first(),), ended_s=10.0))
    made.meter.batch(Batch((later(ids=4),), ended_s=10.25))
    made.meter.batch(Batch((later(),), ended_s=10.3))
    assert made.times("inter_token_latency_seconds") == (2, 0.3)
    assert made.value("generation_tokens_total") == 6


def test_an_answer_that_ends_tells_its_decode_and_its_whole_time() -> None:
    made = Metered()
    made.meter.batch(Batch((first(),), ended_s=10.0))
    made.meter.batch(Batch((later(),), ended_s=12.0, endings=(("a", "length"),)))
    assert made.times("request_decode_time_seconds") == (1, 2.0)
    assert made.times("e2e_request_latency_seconds") == (1, 2.5)
    assert made.value("request_success_total", finished_reason="length") == 1


def test_a_cancelled_answer_is_an_abort_without_times() -> None:
    made = Metered()
    made.meter.batch(Batch((first(),), ended_s=10.0))
    made.meter.batch(Batch(ended_s=12.0, endings=(("a", ABORTED),)))
    assert made.value("request_success_total", finished_reason="abort") == 1
    assert made.times("e2e_request_latency_seconds") == (0, 0)


@pytest.mark.parametrize(
    "end", [Batch(endings=(("a", "stop"),)), Batch(failures=(Failure("a", DeadlineError("late")),))]
)
def test_an_answer_that_is_over_is_followed_no_further(end: Batch) -> None:
    made = Metered()
    made.meter.batch(Batch((first(),), ended_s=10.0))
    made.meter.batch(end)
    made.meter.batch(Batch((later(),), ended_s=11.0))
    assert made.times("inter_token_latency_seconds") == (0, 0)


def test_beyond_the_limit_the_oldest_answer_is_followed_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FOLLOWED_MAX", 2)
    made = Metered()
    made.meter.batch(Batch((first("a"), first("b"), first("c")), ended_s=10.0))
    made.meter.batch(Batch((later("a"), later("b"), later("c")), ended_s=11.0))
    assert made.times("inter_token_latency_seconds") == (2, 2.0)


def test_a_step_is_the_prompt_tokens_that_it_computed_and_the_ids_that_it_brought() -> None:
    made = Metered()
    batch = Batch((first(), later("b", ids=3)), rows=29, prefill_tokens=24, ms=50.0)
    made.meter.batch(batch)
    made.meter.batch(Batch(ended_s=1.0, endings=(("a", "stop"),)))  # no step: nothing ran
    assert made.times("iteration_tokens_total") == (1, 28)
    seconds = {"model_name": made.model}
    assert telemetry.REGISTRY.get_sample_value("firstlight_step_seconds_sum", seconds) == 0.05


def test_drafts_are_counted_by_the_step_and_by_place() -> None:
    made = Metered()
    made.meter.batch(Batch(rows=9, drafts=((4, 2), (3, 0), (2, 1))))
    made.meter.batch(Batch(rows=3, drafts=((2, 2),)))
    assert made.value("spec_decode_num_drafts_total") == 4
    assert made.value("spec_decode_num_draft_tokens_total") == 11
    assert made.value("spec_decode_num_accepted_tokens_total") == 5
    places = [
        made.value("spec_decode_num_accepted_tokens_per_pos_total", position=str(place))
        for place in range(3)
    ]
    assert places == [3, 2, 0]


def test_preemptions_are_counted() -> None:
    made = Metered()
    made.meter.batch(Batch(rows=1, preemptions=2))
    assert made.value("num_preemptions_total") == 2


def hint_tokens(source: str, fate: str) -> float:
    labels = {"source": source, "fate": fate}
    return telemetry.REGISTRY.get_sample_value("firstlight_hint_tokens_total", labels) or 0.0


def test_hints_are_counted_by_source_and_unknown_sources_together() -> None:
    made, before = Metered(), hint_tokens("other", "accepted")
    hints = (("edge-ngram", HintCount(3, 2, 1)), ("x", HintCount(9, 8, 7)))
    made.meter.batch(Batch(done=(Done("a", 1, hints),)))
    assert hint_tokens("other", "accepted") == before + 7


def test_hinted_ids_that_nobody_looked_at_are_counted_as_dropped() -> None:
    made = Metered()
    before = [hint_tokens(source, "dropped") for source in ("edge-model", "other")]
    made.meter.batch(Batch(hint_ids_dropped=(("edge-model", 5), ("x", 2), ("other", 1))))
    after = [hint_tokens(source, "dropped") for source in ("edge-model", "other")]
    assert after == [before[0] + 5, before[1] + 3]
