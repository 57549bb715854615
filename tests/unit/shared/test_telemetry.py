"""Metrics are rendered as Prometheus text, under known names with bounded labels."""

from prometheus_client.parser import text_string_to_metric_families

from firstlight.shared import telemetry

LABELS = {
    "model_name",
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
}


def test_metrics_are_rendered_in_prometheus_text() -> None:
    telemetry.REQUESTS_RUNNING.labels(model_name="m").set(3)
    families = {
        family.name: family
        for family in text_string_to_metric_families(telemetry.render().decode())
    }
    samples = families["vllm:num_requests_running"].samples
    assert ({"model_name": "m"}, 3) in [(s.labels, s.value) for s in samples]


def test_metrics_are_vllms_or_ours_and_their_labels_are_bounded() -> None:
    for collector in telemetry.REGISTRY.collect():
        assert collector.name.startswith(("vllm:", "firstlight_"))
        assert collector.documentation
    metrics = [value for value in vars(telemetry).values() if hasattr(value, "_labelnames")]
    assert {name for metric in metrics for name in metric._labelnames} <= LABELS
