"""Views on their way: what a stream gets that has had the last one, missed one, or is new."""

import asyncio

from reports import report

from firstlight.global_lb.board import Board
from firstlight.global_lb.feed import Feed
from firstlight.global_lb.membership import Lease
from firstlight.shared.proto import control_pb2
from firstlight.shared.proto.convert_mesh import from_view
from firstlight.shared.types import Demand, MeshView, NodeInfo, Report, Role


def named(packed: bytes) -> list[str]:
    view = from_view(control_pb2.MeshView.FromString(packed))
    return [told.info.node for told, _ in view.reports]


def advanced(feed: Feed, seq: int, *reports: Report, news: str = "", now: float = 0.0) -> None:
    for node in news:
        feed.board.news(node)
    feed.advance(MeshView("lb", seq), {r.info.node: Lease(r, 0.0) for r in reports}, now)


async def test_a_stream_that_keeps_up_gets_what_is_new_and_any_other_everything() -> None:
    feed = Feed(Board({Role.CORE}, rest_min=0), brief=False)
    advanced(feed, 1, report("a"), news="a")
    advanced(feed, 2, report("a"), report("b"), news="b")
    assert [(seq, named(view)) for seq, view in (feed.after(1), feed.after(0))] == [
        (2, ["b"]),
        (2, ["a", "b"]),
    ]
    advanced(feed, 3, report("a"), report("b"))
    assert named(feed.after(1)[1]) == ["a", "b"]
    assert named(feed.after(2)[1]) == []


async def test_ages_are_those_of_the_view() -> None:
    feed = Feed(Board({Role.CORE}), brief=False)
    advanced(feed, 1, report("a"), news="a", now=1.5)
    ((_, age_s),) = from_view(control_pb2.MeshView.FromString(feed.after(0)[1])).reports
    assert age_s == 1.5


async def test_cores_hear_who_is_there_and_edges_their_prefixes_too() -> None:
    sketch = bytes(1024)
    one = Report(report("a").info, 1, sketch=sketch)
    for brief, wanted in ((True, b""), (False, sketch)):
        feed = Feed(Board({Role.CORE}), brief=brief)
        advanced(feed, 1, one, news="a")
        view = from_view(control_pb2.MeshView.FromString(feed.after(0)[1]))
        assert view.reports[0][0].sketch == wanted


async def test_what_load_balancers_alone_need_is_not_passed_on() -> None:
    feed = Feed(Board({Role.EDGE}), brief=False)
    edge = NodeInfo("e", Role.EDGE, 1, "lon", "e:1")
    advanced(feed, 1, Report(edge, 1, rtt_ms=(("c", 1.0),), demand=Demand(5.0)), news="e")
    view = from_view(control_pb2.MeshView.FromString(feed.after(0)[1]))
    assert view.reports == ((Report(edge, 1), 0.0),)


async def test_whoever_waits_is_woken_by_the_next_view() -> None:
    feed = Feed(Board({Role.CORE}), brief=False)
    waiting = feed.next
    assert not waiting.done()
    advanced(feed, 1)
    await asyncio.wait((waiting,), timeout=1)
    assert waiting.done()
    assert not feed.next.done()
