"""What the edge does becomes metrics, under labels that are bounded."""

from firstlight.edge_node import meter
from firstlight.edge_node.answer import ChoiceStats, TtftParts
from firstlight.edge_node.choice import Assignment
from firstlight.edge_node.middleware import Access
from firstlight.shared import telemetry
from firstlight.shared.types import FinishReason


def value(sample: str, **labels: str) -> float:
    ours = telemetry.REGISTRY.get_sample_value(sample, labels)
    return ours or telemetry.EDGE_REGISTRY.get_sample_value(sample, labels) or 0.0


def test_a_choice_that_ends_is_counted_with_its_times() -> None:
    stats = ChoiceStats(ttft_ms=TtftParts(total=250.0))
    meter.ended("one-choice", FinishReason.LENGTH, stats, 2.0)
    labels = {"model_name": "one-choice"}
    assert value("vllm:request_success_total", finished_reason="length", **labels) == 1
    assert value("vllm:time_to_first_token_seconds_sum", **labels) == 0.25
    assert value("vllm:e2e_request_latency_seconds_sum", **labels) == 2.0


def test_a_route_beyond_the_home_region_is_a_spill() -> None:
    meter.routed(Assignment("core-1", "far", "class", 1.0, ttft_ms=80.0), home=False)
    assert value("firstlight_routes_total", region="far", reason="spill") == 1
    assert value("firstlight_routes_total", region="far", reason="home") == 0


def test_an_http_answer_is_counted_by_the_pattern_of_its_route() -> None:
    meter.answered(Access("GET", "/v1/models/{model:path}", "h3", 404, 0.1))
    labels = {"protocol": "h3", "route": "/v1/models/{model:path}", "status": "404"}
    assert value("firstlight_http_requests_total", **labels) == 1


def test_a_move_is_counted_by_why() -> None:
    before = value("firstlight_moves_total", reason="move")
    meter.moved("move")
    assert value("firstlight_moves_total", reason="move") == before + 1
