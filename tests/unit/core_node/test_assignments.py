"""Who owns which request on a core."""

import pytest

from firstlight.core_node.assignments import Assignments
from firstlight.shared.errors import StaleError


def test_a_request_is_found_by_its_handle_and_by_its_link() -> None:
    table = Assignments()
    made, replaced = table.open("edge-eu", 1, "r", 1)
    assert replaced is None
    assert table.of(made.handle) == made
    assert table.owned("edge-eu", 1, "r") == made


def test_a_higher_epoch_replaces_what_runs() -> None:
    table = Assignments()
    old, _ = table.open("edge-eu", 1, "r", 1)
    new, replaced = table.open("edge-eu", 1, "r", 2)
    assert replaced == old
    assert table.of(old.handle) is None
    assert table.owned("edge-eu", 1, "r") == new
    assert len(table) == 1


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_epoch_that_is_not_higher_is_stale_on_the_same_link(epoch: int) -> None:
    table = Assignments()
    old, _ = table.open("edge-eu", 1, "r", 2)
    with pytest.raises(StaleError, match=f"runs in epoch 2, but was opened as {epoch}"):
        table.open("edge-eu", 1, "r", epoch)
    assert table.of(old.handle) == old


def test_a_new_link_of_the_same_edge_replaces_whatever_the_epoch() -> None:
    table = Assignments()
    old, _ = table.open("edge-eu", 1, "r", 5)
    new, replaced = table.open("edge-eu", 2, "r", 1)
    assert replaced == old
    assert table.owned("edge-eu", 1, "r") is None
    assert table.owned("edge-eu", 2, "r") == new


def test_edges_with_the_same_id_do_not_meet() -> None:
    table = Assignments()
    eu, _ = table.open("edge-eu", 1, "r", 1)
    us, replaced = table.open("edge-us", 2, "r", 1)
    assert replaced is None
    assert table.owned("edge-eu", 1, "r") == eu
    assert table.owned("edge-us", 2, "r") == us
    assert table.owned("edge-us", 1, "r") is None


def test_handles_are_never_used_twice() -> None:
    table = Assignments()
    handles = set()
    for epoch in range(1, 50):
        made, _ = table.open("edge-eu", 1, "r", epoch)
        handles.add(made.handle)
        table.end(made.handle)
    assert len(handles) == 49


def test_ending_twice_is_harmless_and_spares_the_successor() -> None:
    table = Assignments()
    old, _ = table.open("edge-eu", 1, "r", 1)
    new, _ = table.open("edge-eu", 1, "r", 2)
    table.end(old.handle)
    assert table.of(new.handle) == new


def test_a_cancelled_request_is_settled_once_by_its_statistics() -> None:
    table = Assignments()
    made, _ = table.open("edge-eu", 1, "r", 1)
    table.cancel(made.handle)
    assert table.of(made.handle) is None
    assert table.owned("edge-eu", 1, "r") is None
    assert table.settle(made.handle) == made
    assert table.settle(made.handle) is None


def test_a_running_request_is_settled_by_its_statistics() -> None:
    table = Assignments()
    made, _ = table.open("edge-eu", 1, "r", 1)
    assert table.settle(made.handle) == made
    assert len(table) == 0


def test_a_link_that_leaves_takes_all_that_it_held_along() -> None:
    table = Assignments()
    table.open("edge-eu", 1, "a", 1)
    cancelled, _ = table.open("edge-eu", 1, "b", 1)
    table.cancel(cancelled.handle)
    kept, _ = table.open("edge-eu", 2, "c", 1)
    assert [item.request for item in table.leave(1)] == ["a"]
    assert table.settle(cancelled.handle) is None
    assert table.all() == (kept,)
