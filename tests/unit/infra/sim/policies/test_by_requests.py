"""Round robin, least request, P2C: worked by hand, for their sources have no figures."""

from random import Random

from policy_bed import ask, go, picks, seen

from firstlight.infra.sim.policies.least_request import LeastRequest
from firstlight.infra.sim.policies.p2c import P2C
from firstlight.infra.sim.policies.round_robin import RoundRobin


def test_round_robin_visits_each_in_turn() -> None:
    rule = RoundRobin()
    servers = [seen(server) for server in (4, 2, 9)]
    order = [go(rule, ask(), servers).server for _ in range(6)]
    start = order.index(2)
    assert order[start : start + 3] == [2, 4, 9]
    assert order[:3] == order[3:]


def test_round_robin_does_not_start_everywhere_at_the_same_server() -> None:
    servers = [seen(server) for server in range(3)]
    starts = {RoundRobin().pick(ask(), servers, Random(seed)).server for seed in range(32)}
    assert starts == {0, 1, 2}


def test_round_robin_goes_on_when_the_next_server_is_gone() -> None:
    rule = RoundRobin()
    assert rule.pick(ask(), [seen(4)], Random(0)).server == 4
    assert rule.pick(ask(), [seen(2), seen(9)], Random(0)).server == 9


def test_least_request_counts_what_it_has_open_itself() -> None:
    servers = [seen(0, own_in_flight=2), seen(1, own_in_flight=1, running=60), seen(2, running=3)]
    assert picks(LeastRequest(), ask(), servers[:2]) == {1}
    assert picks(LeastRequest(), ask(), servers) == {2}


def test_least_request_breaks_ties_at_random() -> None:
    servers = [seen(0, own_in_flight=1), seen(1), seen(2)]
    assert picks(LeastRequest(), ask(), servers) == {1, 2}


def test_p2c_never_takes_the_busiest() -> None:
    servers = [seen(0, own_in_flight=9), seen(1, own_in_flight=1), seen(2), seen(3)]
    assert picks(P2C(), ask(), servers) == {1, 2, 3}


def test_p2c_takes_the_second_best_when_the_best_was_not_drawn() -> None:
    rule, rng = P2C(), Random(0)
    servers = [seen(server, own_in_flight=server) for server in range(4)]
    lots = [rule.pick(ask(), servers, rng).server for _ in range(6000)]
    # of the 6 pairs of 4 servers 3 have the idlest, 2 the second without it, 1 the third
    assert [round(lots.count(server) / 1000) for server in range(4)] == [3, 2, 1, 0]


def test_more_choices_come_closer_to_the_least() -> None:
    servers = [seen(server, own_in_flight=server) for server in range(4)]
    assert picks(P2C(4.0), ask(), servers) == {0}
