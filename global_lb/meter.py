"""What a load balancer counts: the signals for an autoscaler, as Prometheus' metrics.

What is unknown has no sample: a scaler that reads 0 would end the region.
"""

from collections.abc import Sequence

from prometheus_client import Gauge

from firstlight.global_lb.scale import RegionScale
from firstlight.shared import telemetry

_GAUGES = (
    telemetry.SCALE_WANTED,
    telemetry.SCALE_CORES,
    telemetry.SCALE_OFFERED,
    telemetry.SCALE_CAPACITY,
    telemetry.SCALE_UTILISATION,
    telemetry.SCALE_PREFILL_SHARE,
    telemetry.SCALE_TTFT,
)


def scaled(regions: Sequence[RegionScale]) -> None:
    """The signals of now, and of no region that is forgotten."""
    for gauge in _GAUGES:
        gauge.clear()
    for one in regions:
        _set(telemetry.SCALE_WANTED, one.wanted, one.region)
        _set(telemetry.SCALE_CORES, one.cores, one.region)
        _set(telemetry.SCALE_OFFERED, one.offered_per_s, one.region)
        _set(telemetry.SCALE_CAPACITY, one.capacity_per_s, one.region)
        _set(telemetry.SCALE_UTILISATION, one.utilisation, one.region)
        _set(telemetry.SCALE_PREFILL_SHARE, one.prefill_share, one.region)
        for name, promise in one.ttft.items():
            predicted_ms = promise.predicted_ms
            predicted_s = None if predicted_ms is None else predicted_ms / 1000
            _set(telemetry.SCALE_TTFT, predicted_s, one.region, name, "predicted")
            _set(telemetry.SCALE_TTFT, promise.promised_ms / 1000, one.region, name, "promised")


def _set(gauge: Gauge, value: float | None, *labels: str) -> None:
    if value is not None:
        gauge.labels(*labels).set(value)
