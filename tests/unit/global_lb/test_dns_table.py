"""The table that DNS answers from: what stays when sources fall silent, and what goes."""

import pytest
from pdns_bed import LONDON, PARIS, TOKYO, steering, told_edge

from firstlight.global_lb.dns_table import HELD_S, TableKeeper


def names(keeper: TableKeeper) -> list[str]:
    return [] if keeper.table is None else [one.edge.info.node for one in keeper.table.edges]


def test_an_edge_that_any_source_lists_is_in_the_table() -> None:
    keeper = TableKeeper()
    assert keeper.take([steering(LONDON), steering(TOKYO)], 0)
    assert names(keeper) == ["lon", "tok"]


def test_if_no_source_answers_the_last_table_stays_for_ever() -> None:
    keeper = TableKeeper()
    keeper.take([steering(LONDON, TOKYO)], 0)
    before = keeper.table
    assert not keeper.take([], 1e9)
    assert keeper.table is before


def test_a_source_that_just_started_and_knows_few_takes_nothing_away() -> None:
    keeper = TableKeeper()
    keeper.take([steering(LONDON, TOKYO)], 0)
    keeper.take([steering(LONDON)], 1)
    assert names(keeper) == ["lon", "tok"]


def test_an_edge_that_answers_lack_for_long_is_gone() -> None:
    keeper = TableKeeper()
    keeper.take([steering(LONDON, TOKYO)], 0)
    keeper.take([steering(LONDON)], 1)
    keeper.take([steering(LONDON)], 1 + HELD_S)
    assert names(keeper) == ["lon", "tok"]
    keeper.take([steering(LONDON)], 1.1 + HELD_S)
    assert names(keeper) == ["lon"]


def test_silence_is_not_lack() -> None:
    keeper = TableKeeper()
    keeper.take([steering(LONDON, TOKYO)], 0)
    keeper.take([], 1000)
    keeper.take([steering(LONDON)], 1001)
    assert names(keeper) == ["lon", "tok"]


def test_an_edge_that_comes_back_begins_anew() -> None:
    keeper = TableKeeper()
    keeper.take([steering(LONDON, TOKYO)], 0)
    keeper.take([steering(LONDON)], 1)
    keeper.take([steering(LONDON, TOKYO)], 5)
    keeper.take([steering(LONDON)], 6)
    keeper.take([steering(LONDON)], 1.1 + HELD_S)
    assert names(keeper) == ["lon", "tok"]


def test_sources_that_know_no_edge_any_more_leave_the_last_ones() -> None:
    keeper = TableKeeper()
    keeper.take([steering(LONDON)], 0)
    for now in (1, 100, 1000):
        assert not keeper.take([steering()], now)
    assert names(keeper) == ["lon"]


def test_an_edge_that_drains_goes_at_once() -> None:
    keeper = TableKeeper()
    keeper.take([steering(LONDON, TOKYO)], 0)
    keeper.take([steering(LONDON, TOKYO), steering(LONDON, draining=["tok"])], 1)
    assert names(keeper) == ["lon"]


def test_the_epoch_grows_when_something_is_different_and_only_then() -> None:
    keeper = TableKeeper()
    keeper.take([steering(LONDON)], 0)
    assert keeper.table is not None
    assert keeper.table.epoch == 1
    assert not keeper.take([steering(LONDON)], 1)
    assert keeper.take([steering(LONDON, PARIS)], 2)
    assert keeper.take([steering(LONDON, PARIS, agreed=[["192.0.2.0/24", "lon", 5]])], 3)
    assert keeper.table.epoch == 3


def test_of_several_words_on_a_round_trip_the_shortest_counts() -> None:
    keeper = TableKeeper()
    told = [steering(LONDON, agreed=[["192.0.2.0/24", "lon", ms]]) for ms in (9, 5, 7)]
    keeper.take(told, 0)
    assert keeper.table is not None
    assert [dict(edges) for edges in keeper.table.agreed.values()] == [{"lon": 5.0}]


@pytest.mark.parametrize(
    "change",
    [
        {"node": ""},
        {"node": 5},
        {"node": "x" * 300},
        {"region": None},
        {"address": "nowhere"},
        {"address": "host:https"},
        {"address": "host:²"},
    ],
)
def test_an_entry_that_is_no_edge_is_passed_over(change: dict[str, object]) -> None:
    keeper = TableKeeper()
    keeper.take([steering({**LONDON, **change}, TOKYO)], 0)
    assert names(keeper) == ["tok"]


@pytest.mark.parametrize(
    "place", [[91, 0], [0], "here", [None, 1], [float("nan"), 0], [10**400, 0], {}]
)
def test_an_edge_that_is_nowhere_is_an_edge_without_a_place(place: object) -> None:
    keeper = TableKeeper()
    keeper.take([steering({**LONDON, "place": place, "ips": ["192.0.2.1", "x", 5]})], 0)
    assert keeper.table is not None
    (one,) = keeper.table.edges
    assert (one.edge.place, one.ips) == (None, ("192.0.2.1",))


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"edges": 5},
        {"edges": [1, None, []]},
        {"edges": [LONDON], "agreed": [1, [], ["x", "y", "z"], ["192.0.2.0/24", "lon", -1]]},
        {"edges": [LONDON], "agreed": [["192.0.2.0/24", "lon", 10**400]], "draining": [5, None]},
        {"edges": [LONDON], "agreed": [["192.0.2.0/24", "lon", float("nan")]], "draining": 7},
    ],
)
def test_nonsense_from_a_source_changes_nothing(document: dict[str, object]) -> None:
    keeper = TableKeeper()
    keeper.take([steering(LONDON)], 0)
    before = keeper.table
    keeper.take([document], 1)
    assert keeper.table is before


def test_more_addresses_than_anyone_has_are_cut() -> None:
    keeper = TableKeeper()
    keeper.take([steering(told_edge("e", None, *["192.0.2.1"] * 100))], 0)
    assert keeper.table is not None
    assert len(keeper.table.edges[0].ips) == 16


def test_a_source_that_knows_no_edge_makes_no_table() -> None:
    keeper = TableKeeper()
    assert not keeper.take([steering()], 0)
    assert keeper.table is None


def test_a_table_that_is_told_empty_is_kept_and_begun_again_by_the_next_edge() -> None:
    keeper = TableKeeper()
    keeper.take([steering(LONDON)], 0)
    for now in (1.0, 1.0 + 2 * HELD_S):
        keeper.take([steering()], now)
        assert names(keeper) == ["lon"]
    keeper.take([steering(TOKYO)], 2.0 + 2 * HELD_S)
    assert names(keeper) == ["tok"]
