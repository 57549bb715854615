"""Metrics are rendered as Prometheus text, under known names with bounded labels."""

import re
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from firstlight.shared import telemetry

LABELS = {
    "model_name",
    "engine",
    "position",
    "finished_reason",
    "source",
    "fate",
    "protocol",
    "route",
    "status",
    "role",
    "reason",
    "region",
    "tier",
    "way",
    "direction",
    "le",
    "state",
    "found",
    "rtt_from",
    "sla_class",
    "kind",
}


def test_metrics_are_rendered_in_prometheus_text() -> None:
    telemetry.REQUESTS_RUNNING.labels(model_name="m", engine="0").set(3)
    families = {
        family.name: family
        for family in text_string_to_metric_families(telemetry.render_core().decode())
    }
    samples = families["vllm:num_requests_running"].samples
    assert ({"model_name": "m", "engine": "0"}, 3) in [(s.labels, s.value) for s in samples]


VLLM_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:iteration_tokens_total",
}
VLLM_COUNTERS = {
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "vllm:num_preemptions_total",
    "vllm:request_success_total",
}
VLLM_GAUGES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
}


def test_a_core_has_the_names_types_and_labels_of_vllm() -> None:
    types = dict(re.findall(r"^# TYPE (vllm:\S+) (\w+)", telemetry.render_core().decode(), re.M))
    assert {name for name, kind in types.items() if kind == "histogram"} == VLLM_HISTOGRAMS
    assert {name for name, kind in types.items() if kind == "counter"} == VLLM_COUNTERS
    created = {name for name in types if name.endswith("_created")}
    assert {name for name, kind in types.items() if kind == "gauge"} - created == VLLM_GAUGES
    for metric in vars(telemetry).values():
        if getattr(metric, "_name", "").startswith("vllm:"):
            assert metric._labelnames[0] == "model_name"


@pytest.mark.parametrize("render", [telemetry.render, telemetry.render_core])
def test_no_family_is_told_twice(render: Callable[[], bytes]) -> None:
    names = re.findall(r"^# TYPE (\S+) ", render().decode(), re.M)
    assert "firstlight_links" in names
    assert "vllm:time_to_first_token_seconds" in names
    assert len(names) == len(set(names))


def test_an_edge_has_no_engine() -> None:
    telemetry.TTFT_SECONDS.labels("an-edge").observe(0.2)
    text = telemetry.render().decode()
    assert 'vllm:time_to_first_token_seconds_count{model_name="an-edge"} 1.0' in text
    assert "engine=" not in text


def test_metrics_are_vllms_or_ours_and_their_labels_are_bounded() -> None:
    vllms = [*telemetry.ENGINE_REGISTRY.collect(), *telemetry.EDGE_REGISTRY.collect()]
    ours = list(telemetry.REGISTRY.collect())
    assert all(family.name.startswith("vllm:") for family in vllms)
    assert all(family.name.startswith("firstlight_") for family in ours)
    assert all(family.documentation for family in vllms + ours)
    metrics = [value for value in vars(telemetry).values() if hasattr(value, "_labelnames")]
    assert {name for metric in metrics for name in metric._labelnames} <= LABELS
