"""Answers for a zone: who is named to whom, for how much of a network, and when there is none."""

from collections.abc import Sequence
from ipaddress import ip_network

import pytest
from pdns_bed import LONDON, PARIS, SYDNEY, TOKYO, ZONE, steering, told_edge

from firstlight.global_lb.dns import (
    Record,
    Trouble,
    choose,
    fit_to_name,
    lookup,
    scope_bits,
)
from firstlight.global_lb.dns_table import Steered, Table, TableKeeper
from firstlight.shared.geography.subnets import Network
from firstlight.shared.routing.geo import Place

CLIENT = ip_network("203.0.113.0/24")
IN_PARIS, IN_TOKYO = Place(48.9, 2.4, "FR"), Place(35.7, 139.7, "JP")


def table(*edges: dict[str, object], **more: object) -> Table:
    keeper = TableKeeper()
    keeper.take([steering(*edges, **more)], 0.0)
    assert keeper.table is not None
    return keeper.table


WORLD = table(LONDON, PARIS, TOKYO, SYDNEY)


def chosen(
    known: Table | None, place: Place | None, client: Network = CLIENT
) -> tuple[Steered, ...]:
    fit = fit_to_name(ZONE, known)
    assert known is not None
    return choose(fit, known.agreed.get(client, {}), place)


def names(chosen: Sequence[Steered]) -> list[str]:
    return [one.edge.info.node for one in chosen]


def records(name: str, qtype: str, client: Network = CLIENT) -> list[Record]:
    return list(lookup(ZONE, name, qtype, client, lambda: chosen(WORLD, IN_TOKYO, client)))


def test_two_edges_are_named_in_different_failure_domains() -> None:
    assert names(chosen(WORLD, IN_PARIS)) == ["par", "tok"]
    assert names(chosen(WORLD, IN_TOKYO)) == ["tok", "syd"]


def test_what_a_network_agrees_on_beats_distance_for_that_network_alone() -> None:
    moved = table(LONDON, PARIS, TOKYO, SYDNEY, agreed=[["203.0.113.0/24", "syd", 3.0]])
    assert names(chosen(moved, IN_PARIS))[0] == "syd"
    assert names(chosen(moved, IN_PARIS, ip_network("203.0.114.0/24")))[0] == "par"


def test_an_edge_on_another_port_or_without_an_address_cannot_be_named() -> None:
    odd = table(told_edge("a", (48.9, 2.4), "192.0.2.9", port=8443), told_edge("b", None), TOKYO)
    assert names(chosen(odd, IN_PARIS)) == ["tok"]


def test_without_a_table_or_an_edge_that_can_be_named_there_is_trouble() -> None:
    with pytest.raises(Trouble):
        chosen(None, IN_PARIS)
    with pytest.raises(Trouble):
        chosen(table(told_edge("b", None)), IN_PARIS)


def test_addresses_and_protocols_are_given_for_the_clients_network_alone() -> None:
    given = records("edge.test.", "ANY")
    differing = [one for one in given if one.qtype in ("A", "AAAA", "HTTPS")]
    assert {one.scope_bits for one in differing} == {24}
    assert {one.ttl_s for one in differing} == {20}
    assert {one.scope_bits for one in given if one.qtype in ("SOA", "NS")} == {0}


def test_the_nearer_edge_has_the_better_priority() -> None:
    assert [one.content for one in records("edge.test", "HTTPS")] == [
        "1 . alpn=h3,h2 ipv4hint=192.0.2.3 ipv6hint=2001:db8::3",
        "2 . alpn=h3,h2 ipv4hint=192.0.2.4",
    ]


def test_a_type_that_was_not_asked_for_is_not_given() -> None:
    assert {one.qtype for one in records("api.edge.test", "A")} == {"A"}
    assert records("api.edge.test", "MX") == []


def test_names_do_not_care_for_letters_large_or_small() -> None:
    assert records("API.Edge.TEST.", "A") == records("api.edge.test", "A")


@pytest.mark.parametrize("name", ["no.edge.test", "test", "", ".", "edge.test.evil", "*.edge.test"])
def test_a_name_that_is_not_ours_has_nothing_and_asks_for_no_edge(name: str) -> None:
    def never() -> Sequence[Steered]:
        raise AssertionError(name)

    assert lookup(ZONE, name, "ANY", CLIENT, never) == ()


def test_a_name_server_is_found_although_no_edge_is_known() -> None:
    def trouble() -> Sequence[Steered]:
        return chosen(None, None)

    (record,) = lookup(ZONE, "ns1.edge.test", "ANY", CLIENT, trouble)
    assert record == Record("ns1.edge.test", "A", "192.0.2.53", 3600)


@pytest.mark.parametrize(("network", "bits"), [("0.0.0.0/0", 1), ("10.0.0.0/8", 8), ("::/0", 1)])
def test_a_scope_is_never_zero(network: str, bits: int) -> None:
    assert scope_bits(ip_network(network)) == bits


def test_that_a_name_does_not_exist_is_believed_no_longer_than_an_answer() -> None:
    (soa,) = records("edge.test", "SOA")
    assert soa.content == "ns1.edge.test. hostmaster.test. 1 3600 600 86400 20"


def test_what_a_network_agrees_on_may_be_an_edge_that_many_are_nearer_than() -> None:
    near = [told_edge(f"n{n}", (48.9, 2.4 + n / 100), f"192.0.2.{100 + n}") for n in range(20)]
    moved = table(*near, SYDNEY, agreed=[["203.0.113.0/24", "syd", 3.0]])
    assert names(chosen(moved, IN_PARIS))[0] == "syd"
