"""Reports and views to our types and back.

A report is refused as a whole; of a view, which has the words of many nodes, only the entries that
no decision can be made with are left out.
"""

from functools import lru_cache

from firstlight.shared.errors import PeerError
from firstlight.shared.proto import control_pb2, core_pb2
from firstlight.shared.proto.convert import (
    TEXT_CHARS_MAX,
    amount,
    few,
    from_load,
    from_node,
    to_load,
    to_node,
)
from firstlight.shared.routing.sketch import SKETCH_BYTES
from firstlight.shared.routing.spill import REGIONS_MAX, Row, sane
from firstlight.shared.types import Demand, Following, MeshView, NodeInfo, Report

NAMES_MAX = 4096
"""Of nodes in one list of a view."""
ENTRIES_MAX = 4096
RTTS_MAX = 4096


def to_report(report: Report) -> control_pb2.Report:
    """A report, for the wire."""
    demand, following = report.demand, report.following
    return control_pb2.Report(
        info=to_node(report.info),
        seq=report.seq,
        load=to_load(report.load),
        rtts=[control_pb2.Rtt(core=core, ms=ms) for core, ms in report.rtt_ms],
        leaving=report.leaving,
        sketch=report.sketch,
        demand=None if demand is None else _to_demand(demand),
        following=None if following is None else _to_following(following),
    )


def from_report(message: control_pb2.Report) -> Report:
    """A report; raises `BadNumberError` if a number is what is wrong with it, else `PeerError`."""
    rtts, sketch = message.rtts, message.sketch
    few("report.rtts", rtts, RTTS_MAX)
    return Report(
        _known_node(message.info.SerializeToString()),
        message.seq,
        from_load(message.load),
        tuple([(item.core, amount("report.rtts", item.ms)) for item in rtts]) if rtts else (),
        message.leaving,
        # One of another size is another version's: no news of prefixes is always right.
        sketch if len(sketch) == SKETCH_BYTES else b"",
        _from_demand(message.demand) if message.HasField("demand") else None,
        _from_following(message.following) if message.HasField("following") else None,
    )


@lru_cache(maxsize=2 * ENTRIES_MAX)
def _known_node(packed: bytes) -> NodeInfo:
    """What a node is does not change, and is read once only. Raises as `from_node`."""
    return from_node(core_pb2.Node.FromString(packed))


def to_entry(report: Report, age_s: float) -> control_pb2.Entry:
    """One node of a view, for the wire."""
    return control_pb2.Entry(report=to_report(report), age_s=age_s)


def to_view(view: MeshView) -> control_pb2.MeshView:
    """A view, for the wire."""
    return control_pb2.MeshView(
        lb=view.lb,
        seq=view.seq,
        incarnation=view.incarnation,
        entries=[to_entry(report, age_s) for report, age_s in view.reports],
        suspects=sorted(view.suspects),
        draining=control_pb2.Draining(nodes=sorted(view.draining), whole=view.draining_whole),
        rows=[_to_row(origin, row) for origin, row in view.table.items()],
    )


def from_view(message: control_pb2.MeshView) -> MeshView:
    """A view, without what cannot be used of it; raises `PeerError` for one without end."""
    few("view.entries", message.entries, ENTRIES_MAX)
    few("view.suspects", message.suspects, NAMES_MAX)
    few("view.draining", message.draining.nodes, NAMES_MAX)
    few("view.rows", message.rows, REGIONS_MAX)
    reports, table, ignored = [], {}, []
    for entry in message.entries:
        try:
            reports.append((from_report(entry.report), amount("view.age_s", entry.age_s)))
        except PeerError as error:
            ignored.append((entry.report.info.node[:TEXT_CHARS_MAX], error.message))
    for item in message.rows:
        row = _from_row(item)
        if sane(row):
            table[item.origin] = row
        else:
            ignored.append((item.origin[:TEXT_CHARS_MAX], "shares that are not 1 together"))
    return MeshView(
        message.lb[:TEXT_CHARS_MAX],
        message.seq,
        tuple(reports),
        incarnation=message.incarnation,
        suspects=frozenset(message.suspects),
        draining=frozenset(message.draining.nodes),
        draining_whole=message.draining.whole,
        table=table,
        ignored=tuple(ignored),
    )


def _to_demand(demand: Demand) -> control_pb2.Demand:
    return control_pb2.Demand(
        work_per_s=demand.work_per_s,
        refused_per_s=demand.refused_per_s,
        prompt_tokens_per_s=demand.prompt_tokens_per_s,
        output_tokens_per_s=demand.output_tokens_per_s,
        requests_per_s=demand.requests_per_s,
    )


def _from_demand(message: control_pb2.Demand) -> Demand:
    return Demand(
        work_per_s=amount("demand.work_per_s", message.work_per_s),
        refused_per_s=amount("demand.refused_per_s", message.refused_per_s),
        prompt_tokens_per_s=amount("demand.prompt_tokens_per_s", message.prompt_tokens_per_s),
        output_tokens_per_s=amount("demand.output_tokens_per_s", message.output_tokens_per_s),
        requests_per_s=amount("demand.requests_per_s", message.requests_per_s),
    )


def _to_following(following: Following) -> control_pb2.Following:
    return control_pb2.Following(lb=following.lb, row=_to_row("", following.row))


def _from_following(message: control_pb2.Following) -> Following | None:
    """What an edge follows is advice: a row that cannot be is no row."""
    row = _from_row(message.row)
    return Following(message.lb[:TEXT_CHARS_MAX], row) if sane(row) else None


def _to_row(origin: str, row: Row) -> control_pb2.Row:
    shares = [control_pb2.Share(region=region, share=share) for region, share in row.fractions]
    return control_pb2.Row(origin=origin, shares=shares, shed=row.shed)


def _from_row(message: control_pb2.Row) -> Row:
    return Row(tuple((item.region, item.share) for item in message.shares), message.shed)
