"""Reports and views over the wire: whole there and back, wrong ones entry by entry."""

import math

import pytest

from firstlight.shared.errors import BadNumberError, PeerError
from firstlight.shared.proto import control_pb2
from firstlight.shared.proto.convert import to_node
from firstlight.shared.proto.convert_mesh import (
    ENTRIES_MAX,
    from_report,
    from_view,
    to_report,
    to_view,
)
from firstlight.shared.routing.spill import Row
from firstlight.shared.types import Demand, Following, Load, MeshView, NodeInfo, Report, Role

CORE = NodeInfo("core-eu", Role.CORE, 7, "eu", "127.0.0.1:1")
EDGE = NodeInfo("edge-eu", Role.EDGE, 8, "eu", "127.0.0.1:2")
ROW = Row((("eu", 0.75), ("us", 0.125)), 0.125)


def test_a_report_comes_back_as_it_was() -> None:
    report = Report(
        EDGE,
        3,
        Load(running=2),
        (("core-eu", 1.5),),
        demand=Demand(100.0, 5.0, 80.0, 20.0, 2.0),
        following=Following("lb-1", ROW),
    )
    assert from_report(to_report(report)) == report
    assert from_report(to_report(Report(CORE, 1))) == Report(CORE, 1)


def test_a_view_comes_back_as_it_was() -> None:
    view = MeshView(
        "lb-1",
        9,
        ((Report(CORE, 1), 0.25), (Report(EDGE, 2), 1.0)),
        incarnation=77,
        suspects=frozenset({"core-us"}),
        draining=frozenset({"core-eu"}),
        draining_whole=True,
        table={"eu": ROW, "us": Row((("us", 1.0),))},
    )
    assert from_view(to_view(view)) == view
    assert from_view(to_view(MeshView("lb-1", 9))) == MeshView("lb-1", 9)


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0])
def test_a_report_with_a_number_that_cannot_be_says_so(number: float) -> None:
    for wrong in (
        control_pb2.Report(info=to_node(EDGE), demand={"work_per_s": number}),
        control_pb2.Report(info=to_node(EDGE), rtts=[{"core": "c", "ms": number}]),
        control_pb2.Report(info=to_node(EDGE), load={"kv_used_share": number}),
    ):
        with pytest.raises(BadNumberError):
            from_report(wrong)


def test_a_row_that_cannot_be_followed_is_not_followed() -> None:
    message = to_report(Report(EDGE, 1, following=Following("lb-1", ROW)))
    message.following.row.shares[0].share = math.nan
    assert from_report(message).following is None


def test_one_wrong_entry_costs_only_itself() -> None:
    message = to_view(MeshView("lb-1", 1, ((Report(CORE, 1), 0.0), (Report(EDGE, 1), 0.0))))
    message.entries[0].report.load.kv_used_share = math.nan
    view = from_view(message)
    assert [report.info.node for report, _ in view.reports] == ["edge-eu"]
    assert view.ignored == (("core-eu", "load.kv_used_share is nan, expected a number from 0 on"),)


@pytest.mark.parametrize("age_s", [math.nan, math.inf, -1.0])
def test_an_entry_of_no_age_is_left_out(age_s: float) -> None:
    message = to_view(MeshView("lb-1", 1, ((Report(CORE, 1), 0.0),)))
    message.entries[0].age_s = age_s
    assert from_view(message).reports == ()


@pytest.mark.parametrize("share", [math.nan, -0.5, 0.0, 9.0])
def test_a_row_of_shares_that_cannot_be_is_left_out(share: float) -> None:
    message = to_view(MeshView("lb-1", 1, table={"eu": ROW, "us": ROW}))
    message.rows[0].shares[0].share = share
    view = from_view(message)
    assert view.table == {"us": ROW}
    assert view.ignored == (("eu", "shares that are not 1 together"),)


def test_a_view_without_end_is_refused() -> None:
    message = control_pb2.MeshView(entries=[control_pb2.Entry()] * (ENTRIES_MAX + 1))
    with pytest.raises(PeerError, match=r"view\.entries has 4097 entries"):
        from_view(message)
    message = control_pb2.MeshView(suspects=["x"] * 5000)
    with pytest.raises(PeerError, match=r"view\.suspects has 5000 entries"):
        from_view(message)
