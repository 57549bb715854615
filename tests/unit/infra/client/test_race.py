"""Who begins when in a race, over what, and what a failure changes."""

from math import inf, nan

import pytest

from firstlight.infra.client.edges import Edge, Ranked
from firstlight.infra.client.race import (
    LANES_MAX,
    RUNNING_MAX,
    STAGGER_MAX_S,
    STAGGER_MIN_S,
    Lane,
    Race,
    lanes_of,
    stagger_s,
)


def ranked(*names: str, rtt_s: float | None = None, quic: bool = True) -> list[Ranked]:
    return [Ranked(Edge(name, name, quic=quic), rtt_s, "") for name in names]


def told(lanes: list[Lane]) -> list[str]:
    return [lane.edge.node + lane.http for lane in lanes]


@pytest.mark.parametrize(
    ("rtt_s", "expected_s"),
    [(None, 0.05), (0.0, 0.05), (0.04, 0.05), (0.08, 0.1), (0.2, 0.25), (3.0, 0.25)],
)
def test_the_second_edge_follows_after_one_and_a_quarter_round_trips_within_limits(
    rtt_s: float | None, expected_s: float
) -> None:
    assert stagger_s(rtt_s) == pytest.approx(expected_s)


@pytest.mark.parametrize("rtt_s", [nan, inf, -1.0])
def test_a_round_trip_that_cannot_be_is_as_none(rtt_s: float) -> None:
    assert stagger_s(rtt_s) == STAGGER_MIN_S


def test_two_edges_over_quic_come_before_the_same_two_over_tcp() -> None:
    assert told(lanes_of(ranked("a", "b", "c"))) == ["a3", "b3", "a1", "b1", "c3", "c1"]


def test_where_udp_is_doubted_tcp_comes_first() -> None:
    assert told(lanes_of(ranked("a", "b"), udp_doubted=True)) == ["a1", "b1", "a3", "b3"]


def test_an_edge_without_quic_is_raced_over_tcp_alone() -> None:
    assert told(lanes_of(ranked("a", quic=False))) == ["a1"]


def test_one_version_can_be_asked_for() -> None:
    assert told(lanes_of(ranked("a", "b"), only="3")) == ["a3", "b3"]
    assert told(lanes_of(ranked("a", "b"), only="2")) == ["a2", "b2"]


def test_no_more_lanes_than_the_limit_are_made() -> None:
    assert len(lanes_of(ranked(*"abcdefgh"))) == LANES_MAX


def race(*names: str, rtt_s: float | None = 0.08) -> Race:
    return Race(lanes_of(ranked(*names, rtt_s=rtt_s)), 10.0)


def test_the_first_begins_at_once_and_the_second_after_its_time() -> None:
    run = race("a", "b")
    assert told(run.start(10.0)) == ["a3"]
    assert run.wait_s(10.0) == pytest.approx(0.1)
    assert run.start(10.09) == []
    assert told(run.start(10.1)) == ["b3"]


def test_tcp_waits_for_its_time_while_quic_may_win() -> None:
    run = race("a", rtt_s=0.001)
    run.start(10.0)
    assert run.start(10.0 + STAGGER_MAX_S - 0.001) == []
    assert told(run.start(10.0 + STAGGER_MAX_S)) == ["a1"]


def test_who_fails_makes_room_for_the_next_at_once() -> None:
    run = race("a", "b")
    (first,) = run.start(10.0)
    run.failed(first, "refused", 10.01)
    assert told(run.start(10.01)) == ["b3"]


def test_tcp_begins_at_once_where_no_quic_runs() -> None:
    run = race("a")
    (first,) = run.start(10.0)
    run.failed(first, "refused", 10.01)
    assert told(run.start(10.01)) == ["a1"]


def test_a_race_is_lost_when_all_have_failed_and_says_why() -> None:
    run = race("a")
    for reason in ("refused", "unreachable"):
        assert not run.lost
        (lane,) = run.start(20.0)
        run.failed(lane, reason, 20.0)
    assert run.lost
    assert run.failures == "refused; unreachable"
    assert run.wait_s(20.0) is None


def test_a_race_of_nobody_is_lost() -> None:
    assert Race([], 0.0).lost


def test_only_so_many_run_at_the_same_time() -> None:
    run = race(*"abcdef")
    begun = [lane for at in range(20) for lane in run.start(10.0 + at)]
    assert len(begun) == RUNNING_MAX
    assert run.wait_s(30.0) is None
    run.failed(begun[0], "refused", 30.0)
    assert len(run.start(30.0)) == 1


def test_it_is_known_how_long_quic_was_tried_in_vain() -> None:
    run = race("a")
    (quic,) = run.start(10.0)
    (tcp,) = run.start(10.25)
    assert run.quic_tried_s(10.4, tcp) == pytest.approx(0.4)
    assert run.quic_tried_s(10.4, quic) is None
