"""Which edge a client would ask next, by what it measured and what failed."""

from math import inf, nan
from random import Random

import pytest

from firstlight.infra.client.edges import (
    AVOID_MAX_S,
    EDGES_MAX,
    NEARER_SHARE,
    UDP_DOUBT_S,
    Edge,
    EdgeBook,
)

A, B, C = (Edge(f"https://{name}:443", name) for name in "abc")


class Never(Random):
    """Draws the upper end: how long an edge is avoided at most."""

    def uniform(self, a: float, b: float) -> float:
        return b


def book(*edges: Edge) -> EdgeBook:
    made = EdgeBook(Never())
    made.learn(edges)
    return made


def order(of: EdgeBook, now: float = 0.0, avoid: tuple[str, ...] = ()) -> str:
    return "".join(ranked.edge.node for ranked in of.ranking(now, avoid))


def test_edges_of_which_nothing_is_known_stand_as_they_were_listed() -> None:
    assert order(book(B, A, C)) == "bac"


def test_the_nearest_measured_edge_stands_first() -> None:
    known = book(A, B, C)
    for edge, rtt_s in ((A, 0.08), (B, 0.02), (C, 0.05)):
        known.measured(edge.url, rtt_s)
    assert order(known) == "bca"
    assert known.ranking(0.0)[0].why == "measured 20.0 ms"


def test_a_measured_round_trip_overrides_an_expected_one() -> None:
    known = book(Edge(A.url, "a", expected_rtt_s=0.01), Edge(B.url, "b", expected_rtt_s=0.03))
    assert order(known) == "ab"
    known.measured(A.url, 0.09)
    assert order(known) == "ba"


@pytest.mark.parametrize("rtt_s", [nan, inf, -inf, -0.001, 61.0])
def test_what_cannot_be_a_round_trip_is_not_believed(rtt_s: float) -> None:
    known = book(A, B)
    known.measured(B.url, rtt_s)
    assert order(known) == "ab"
    assert known.rtts_s() == {}


def test_a_shorter_round_trip_counts_at_once_and_a_longer_one_bit_by_bit() -> None:
    known = book(A)
    for rtt_s, expected_s in ((0.04, 0.04), (0.02, 0.02), (0.06, 0.03), (0.01, 0.01)):
        known.measured(A.url, rtt_s)
        assert known.rtts_s()["a"] == pytest.approx(expected_s)


def test_an_edge_that_failed_stands_last_until_its_time_is_over() -> None:
    known = book(A, B)
    known.failed(A.url, "refused", 10.0)
    assert order(known, 10.9) == "ba"
    assert known.ranking(10.5)[1].why == "avoided for 0.5 s: refused"
    assert order(known, 11.0) == "ab"


def test_who_fails_again_and_again_is_avoided_for_longer_up_to_a_limit() -> None:
    known = book(A, B)
    waits = []
    for _ in range(10):
        known.failed(A.url, "refused", 0.0)
        waits.append(next(t for t in (1, 2, 4, 8, 16, 32, 60, 61) if order(known, t) == "ab"))
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert AVOID_MAX_S == 60


def test_who_answers_again_is_trusted_at_once() -> None:
    known = book(A, B)
    known.failed(A.url, "refused", 0.0)
    known.won(A.url, tcp=False, quic_tried_s=None, now=0.1)
    assert order(known, 0.1) == "ab"


def test_the_edge_that_was_lost_stands_behind_all_others_even_failed_ones() -> None:
    known = book(A, B)
    known.failed(B.url, "refused", 0.0)
    assert order(known, 0.1, avoid=(A.url,)) == "ba"


def test_the_winner_of_a_race_stands_first_among_those_nobody_measured() -> None:
    known = book(A, B)
    known.won(B.url, tcp=False, quic_tried_s=None, now=0.0)
    assert order(known) == "ba"
    known.failed(B.url, "lost", 0.0)
    assert order(known, 5.0) == "ab"


def test_a_new_list_keeps_what_was_measured_of_those_that_stay() -> None:
    known = book(A, B)
    known.measured(B.url, 0.01)
    known.learn([C, B])
    assert order(known) == "bc"
    assert A.url not in known


def test_an_empty_list_teaches_nothing() -> None:
    known = book(A)
    known.learn([])
    assert order(known) == "a"


def test_more_edges_than_the_limit_are_not_remembered_nor_is_one_twice() -> None:
    known = book(*(Edge(f"https://{number}:1") for number in range(2 * EDGES_MAX)), A)
    assert len(known) == EDGES_MAX
    assert len(book(A, A)) == 1


def test_a_changed_network_forgets_what_the_old_one_was_like() -> None:
    known = book(A, B)
    known.measured(B.url, 0.01)
    known.failed(A.url, "refused", 0.0)
    known.won(B.url, tcp=True, quic_tried_s=9.0, now=0.0)
    known.network_changed()
    assert order(known) == "ab"
    assert not known.udp_doubted(0.1)
    assert known.rtts_s() == {}


def test_udp_is_doubted_for_a_while_when_tcp_won_and_quic_had_heard_nothing() -> None:
    known = book(A)
    known.measured(A.url, 0.04)
    known.won(A.url, tcp=True, quic_tried_s=0.25, now=100.0)
    assert known.udp_doubted(100.0 + UDP_DOUBT_S - 1)
    assert not known.udp_doubted(100.0 + UDP_DOUBT_S)


@pytest.mark.parametrize("tried_s", [None, 0.05])
def test_udp_is_not_doubted_where_quic_had_no_chance(tried_s: float | None) -> None:
    known = book(A)
    known.measured(A.url, 0.04)
    known.won(A.url, tcp=True, quic_tried_s=tried_s, now=0.0)
    assert not known.udp_doubted(0.0)


def test_udp_is_trusted_again_when_quic_wins() -> None:
    known = book(A)
    known.won(A.url, tcp=True, quic_tried_s=5.0, now=0.0)
    known.won(A.url, tcp=False, quic_tried_s=None, now=1.0)
    assert not known.udp_doubted(1.0)


@pytest.mark.parametrize(
    ("here_s", "there_s", "pays"),
    [(0.1, 0.02, True), (0.1, 0.08, False), (0.006, 0.002, False), (0.02, 0.1, False)],
)
def test_an_edge_is_left_only_for_one_that_is_much_nearer(
    here_s: float, there_s: float, pays: bool
) -> None:
    known = book(A, B)
    known.measured(A.url, here_s)
    known.measured(B.url, there_s)
    assert known.much_nearer(A.url, 0.0) is pays
    assert NEARER_SHARE < 1


def test_an_edge_is_not_left_for_one_that_fails() -> None:
    known = book(A, B)
    known.measured(A.url, 0.1)
    known.measured(B.url, 0.01)
    known.failed(B.url, "refused", 0.0)
    assert not known.much_nearer(A.url, 0.5)


def test_an_edge_that_is_not_listed_any_more_is_left() -> None:
    known = book(A, B)
    known.learn([B])
    assert known.much_nearer(A.url, 0.0)
