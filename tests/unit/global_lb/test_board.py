"""What views name: news at once, the rest in turn, and never more than the limit."""

from reports import report

from firstlight.global_lb.board import NEWS_MAX, Board
from firstlight.global_lb.membership import Lease
from firstlight.shared.types import NodeInfo, Report, Role


def leases(*reports: Report) -> dict[str, Lease]:
    return {one.info.node: Lease(one, 0.0) for one in reports}


def named(board: Board, known: dict[str, Lease]) -> list[str]:
    return [lease.report.info.node for lease in board.next(known)]


def test_news_comes_first_and_at_once() -> None:
    board, known = Board({Role.CORE}, rest_min=2), leases(report("a"), report("b"))
    board.news("b")
    assert named(board, known) == ["b"]
    board.news("a")
    assert named(board, leases(report("a"), report("b", seq=2))) == ["a", "b"]


def test_the_rest_is_named_in_turn_whoever_was_named_longest_ago_first() -> None:
    board, names = Board({Role.CORE}, rest_min=2), list("abcde")
    for name in names:
        board.news(name)
    assert named(board, leases(*map(report, names))) == names
    turns = [
        named(board, leases(*(report(name, seq=2 + turn) for name in names))) for turn in range(5)
    ]
    assert turns == [["a", "b"], ["c", "d"], ["e", "a"], ["b", "c"], ["d", "e"]]


def test_a_node_that_said_nothing_new_is_not_named_again_and_keeps_nobody_waiting() -> None:
    board, names = Board({Role.CORE}, rest_min=1), list("ab")
    for name in names:
        board.news(name)
    known = leases(*map(report, names))
    named(board, known)
    known |= leases(report("b", seq=2))
    assert [named(board, known) for _ in range(3)] == [[], ["b"], []]


def test_what_concerns_nobody_who_listens_is_not_named() -> None:
    edge = Report(NodeInfo("e", Role.EDGE, 1, "lon", "e:1"), 1)
    board = Board({Role.CORE})
    board.news("e")
    assert named(board, leases(edge)) == []
    assert board.whole(leases(edge, report("a"))) == (Lease(report("a"), 0.0),)


def test_who_is_gone_is_forgotten() -> None:
    board = Board({Role.CORE})
    for name in ("a", "b"):
        board.news(name)
    named(board, leases(report("a"), report("b")))
    assert named(board, leases(report("b", seq=2))) == ["b"]
    assert named(board, leases(report("a"), report("b", seq=3))) == ["b"]


def test_more_news_than_fits_waits_for_the_next_view() -> None:
    board, names = Board({Role.CORE}), [f"c{number:04}" for number in range(NEWS_MAX + 5)]
    known = leases(*map(report, names))
    for name in names:
        board.news(name)
    assert named(board, known) == names[:NEWS_MAX]
    assert board.more
    assert named(board, known) == names[NEWS_MAX:]
    assert not board.more


def test_of_a_large_mesh_every_node_is_named_within_eight_views() -> None:
    board, names = Board({Role.CORE}), [f"c{number:04}" for number in range(1000)]
    for name in names:
        board.news(name)
    named(board, leases(*map(report, names)))
    views = [
        named(board, leases(*(report(name, seq=2 + turn) for name in names))) for turn in range(8)
    ]
    assert [len(view) for view in views] == [125] * 8
    assert sorted(name for view in views for name in view) == names
