"""Counts what the edge does. Decisions return reasons; this shell turns them into metrics."""

from firstlight.edge_node.answer import ChoiceStats
from firstlight.edge_node.choice import Assignment
from firstlight.edge_node.middleware import Access
from firstlight.shared import telemetry
from firstlight.shared.types import FinishReason


def answered(access: Access) -> None:
    """An HTTP request has ended."""
    telemetry.HTTP_REQUESTS.labels(access.protocol, access.route, str(access.status)).inc()


def ended(model: str, finish: FinishReason, stats: ChoiceStats, wall_s: float) -> None:
    """A choice has ended well, `wall_s` after its request's first byte."""
    telemetry.REQUEST_SUCCESS.labels(model, str(finish)).inc()
    telemetry.TTFT_SECONDS.labels(model).observe(stats.ttft_ms.total / 1000)
    telemetry.E2E_SECONDS.labels(model).observe(wall_s)


def moved(why: str) -> None:
    """A choice goes on at another core."""
    telemetry.MOVES.labels(why).inc()


def routed(assignment: Assignment, *, home: bool) -> None:
    """A core was chosen, in the edge's own region or not."""
    telemetry.ROUTES.labels(assignment.region, "home" if home else "spill").inc()
    telemetry.ROUTE_TTFT_SECONDS.observe(assignment.ttft_ms / 1000)
    if assignment.route.panic:
        telemetry.ROUTE_PANICS.inc()


def ejected() -> None:
    """A core is left out for a while."""
    telemetry.EJECTIONS.inc()


def streams_kept(streams: int, ids: int) -> None:
    """What the log of streams holds now."""
    telemetry.STREAMS_KEPT.set(streams)
    telemetry.STREAM_IDS_KEPT.set(ids)


def gone_on(how: str) -> None:
    """A client goes on with a stream: `here`, by its `key`, by its `ids` or from the `journal`."""
    telemetry.STREAMS_GONE_ON.labels(how).inc()


def journaled(fate: str, count: int = 1) -> None:
    """What became of streams that were to be written to the journal, or read from it."""
    telemetry.JOURNAL.labels(fate).inc(count)
