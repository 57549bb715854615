"""Nearest first, the second elsewhere, and when a client is sent on."""

from random import Random

import pytest

from firstlight.shared.geography.directory import (
    Client,
    Edge,
    RttFrom,
    believed_place,
    edges_from,
    rank,
    redirect_target,
)
from firstlight.shared.geography.site import said_place
from firstlight.shared.routing.geo import Place, prior_between_ms
from firstlight.shared.types import Load, NodeInfo, Report, Role

LONDON, PARIS = Place(51.5, -0.1, "GB"), Place(48.9, 2.4, "FR")
TOKYO, SYDNEY = Place(35.7, 139.7, "JP"), Place(-33.9, 151.2, "AU")


def edge(node: str, place: Place | None, domain: str = "", region: str = "") -> Edge:
    info = NodeInfo(node, Role.EDGE, 1, region or node, f"{node}:443", failure_domain=domain)
    return Edge(info, place)


WORLD = [edge("lon", LONDON), edge("par", PARIS), edge("tok", TOKYO), edge("syd", SYDNEY)]


def names(edges: list[Edge], client: Client) -> list[str]:
    return [one.edge.info.node for one in rank(edges, client)]


def test_edges_are_ranked_by_distance_if_nothing_is_measured() -> None:
    assert names(WORLD, Client(place=PARIS)) == ["par", "lon", "tok", "syd"]
    first = rank(WORLD, Client(place=LONDON))[1]
    assert (first.rtt_ms, first.rtt_from) == (prior_between_ms(LONDON, PARIS), RttFrom.CITY)


def test_the_order_of_input_does_not_matter() -> None:
    shuffled = list(WORLD)
    for seed in range(20):
        Random(seed).shuffle(shuffled)
        assert names(shuffled, Client()) == ["lon", "par", "syd", "tok"]
        assert names(shuffled, Client(place=TOKYO))[0] == "tok"


def test_what_a_network_agrees_on_beats_distance_and_what_a_client_measured_beats_both() -> None:
    reported = Client(place=PARIS, reported={"tok": 4.0})
    assert names(WORLD, reported)[0] == "tok"
    measured = Client(place=PARIS, reported={"tok": 4.0}, measured={"tok": 300.0, "syd": 3.0})
    ranked = rank(WORLD, measured)
    assert ranked[0].edge.info.node == "syd"
    assert {one.edge.info.node: one.rtt_from for one in ranked}["tok"] is RttFrom.MEASURED


def test_a_country_is_a_weaker_word_than_a_city() -> None:
    country = Place(46, 2, "FR", exact=False)
    assert {one.rtt_from for one in rank(WORLD, Client(place=country))} == {RttFrom.COUNTRY}


def test_edges_of_which_nothing_is_known_stand_last() -> None:
    ranked = rank([edge("a", None), *WORLD], Client(place=TOKYO))
    assert (ranked[-1].edge.info.node, ranked[-1].rtt_ms) == ("a", None)
    assert ranked[-1].rtt_from is RttFrom.UNKNOWN


def test_the_second_edge_is_the_nearest_that_does_not_fail_with_the_first() -> None:
    edges = [
        edge("a", LONDON, "eu-1"),
        edge("b", LONDON, "eu-1"),
        edge("c", PARIS, "eu-2"),
        edge("d", TOKYO, "ap-1"),
    ]
    assert names(edges, Client(place=LONDON)) == ["a", "c", "b", "d"]


def test_without_another_domain_the_order_stays() -> None:
    edges = [edge(name, LONDON, "eu-1") for name in "abc"]
    assert names(edges, Client(place=LONDON)) == ["a", "b", "c"]


def test_without_a_domain_the_region_is_one() -> None:
    edges = [edge("a", LONDON, region="eu"), edge("b", LONDON, region="eu"), edge("c", TOKYO)]
    assert names(edges, Client(place=LONDON)) == ["a", "c", "b"]


def test_who_asks_for_a_region_gets_it_first_then_by_what_edges_measured() -> None:
    info = NodeInfo("e", Role.EDGE, 1, "far", "e:1")
    edges = [Edge(info, None, (("lon", 9.0), ("lon", 7.0))), edge("z", None, region="lon")]
    ranked = rank(edges, Client(region="lon"))
    assert [one.edge.info.node for one in ranked] == ["z", "e"]
    assert (ranked[1].rtt_ms, ranked[1].rtt_from) == (7.0, RttFrom.CORES)


def sent(here: str, client: Client, *, already: bool = False) -> str | None:
    there = redirect_target(WORLD, client, here, already=already)
    return None if there is None else there.edge.info.node


def test_a_client_of_a_far_edge_is_sent_to_a_much_nearer_one() -> None:
    assert sent("tok", Client(place=PARIS)) == "par"


def test_who_was_sent_on_once_stays() -> None:
    assert sent("tok", Client(place=PARIS), already=True) is None


def test_an_edge_that_is_near_enough_keeps_its_client() -> None:
    assert sent("lon", Client(place=PARIS)) is None
    assert sent("par", Client(place=PARIS)) is None


@pytest.mark.parametrize(("here_ms", "there_ms", "goes"), [(91, 30, True), (90, 30, False)])
def test_a_redirect_must_save_more_than_two_round_trips_there(
    here_ms: float, there_ms: float, goes: bool
) -> None:
    client = Client(reported={"lon": there_ms, "tok": here_ms})
    assert (sent("tok", client) == "lon") is goes


@pytest.mark.parametrize(("here_ms", "goes"), [(21.5, True), (20.5, False)])
def test_a_redirect_must_save_something_worth_it(here_ms: float, goes: bool) -> None:
    client = Client(reported={"lon": 1.0, "tok": here_ms})
    assert (sent("tok", client) == "lon") is goes


def test_who_is_near_stays_without_a_look_at_other_edges() -> None:
    class Counted(dict[str, float]):
        asked = 0

        def __contains__(self, node: object) -> bool:
            Counted.asked += 1
            return super().__contains__(node)

    assert sent("tok", Client(measured=Counted(tok=19.0, lon=1.0))) is None
    assert Counted.asked == 1


def test_a_country_is_too_large_to_send_anyone_on_by() -> None:
    assert sent("tok", Client(place=Place(46, 2, "FR", exact=False))) is None
    assert sent("tok", Client()) is None


def test_an_edge_that_is_not_in_its_own_list_sends_nobody_on() -> None:
    assert sent("elsewhere", Client(place=PARIS)) is None
    assert redirect_target((), Client(place=PARIS), "lon", already=False) is None


def test_a_node_that_cannot_be_where_it_says_is_nowhere() -> None:
    assert believed_place(TOKYO, [(LONDON, [3.0]), (PARIS, [9.0])]) is None
    assert believed_place(TOKYO, [(LONDON, [220.0]), (PARIS, [230.0])]) == TOKYO


def test_of_many_round_trips_the_last_count_as_the_first_do() -> None:
    cores = [
        Report(NodeInfo(f"c{n}", Role.CORE, 1, "lon", f"c{n}:1", place=(51.5, -0.1)), 1)
        for n in range(1000)
    ]
    for possible, believed in ((400, False), (600, True)):
        rtts = tuple((f"c{n}", 220.0 if n < possible else 3.0) for n in range(1000))
        info = NodeInfo("x", Role.EDGE, 1, "tok", "x:1", place=(TOKYO.latitude, TOKYO.longitude))
        (one,) = edges_from([Report(info, 1, rtt_ms=rtts), *cores], said_place)
        assert (one.place is not None) == believed


def test_one_core_that_lies_does_not_make_an_edge_homeless() -> None:
    assert believed_place(TOKYO, [(LONDON, [220.0]), (PARIS, [1.0])]) == TOKYO
    assert believed_place(TOKYO, [(LONDON, [220.0, 221.0]), (PARIS, [1.0])]) == TOKYO
    assert believed_place(TOKYO, [(LONDON, [220.0]), (PARIS, [1.0, 2.0])]) is None
    assert believed_place(TOKYO, [(None, [1.0]), (PARIS, [])]) == TOKYO
    assert believed_place(None, []) is None


def report(node: str, role: Role, place: tuple[float, float] | None, **more: object) -> Report:
    info = NodeInfo(node, role, 1, node, f"{node}:1", place=place)
    return Report(info, 1, **more)  # type: ignore[arg-type]


def test_edges_are_made_of_reports_with_what_they_measure_to_cores() -> None:
    told = [
        report("core", Role.CORE, (51.5, -0.1)),
        report("far", Role.EDGE, (35.7, 139.7), rtt_ms=(("core", 220.0), ("gone", 1.0))),
        report("liar", Role.EDGE, (35.7, 139.7), rtt_ms=(("core", 3.0),)),
        report("drains", Role.EDGE, None, load=Load(draining=True)),
        report("leaves", Role.EDGE, None, leaving=True),
    ]
    far, liar = edges_from(told, said_place)
    assert (far.info.node, far.core_rtts) == ("far", (("core", 220.0),))
    assert far.place == Place(35.7, 139.7)
    assert (liar.info.node, liar.place) == ("liar", None)
