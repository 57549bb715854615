"""Order of use, bounds and counts of a directory; and how long it rests."""

import pytest

from firstlight.core_node.kv.disk_index import DiskIndex, Found, Rest


def full(total: int = 4) -> DiskIndex:
    index = DiskIndex(total)
    for name in "abc"[: total - 1]:
        index.begin()
        index.land(name)
    return index


def counts(index: DiskIndex) -> tuple[int, int, int]:
    return index.free, index.used, index.cached


def remove_doomed(index: DiskIndex) -> list[str]:
    removed = []
    while (name := index.doomed) is not None:
        index.removed(name)
        removed.append(name)
    return removed


def test_one_slot_is_always_left_for_the_block_under_way() -> None:
    index = full()
    assert counts(index) == (1, 0, 3)
    index.begin()
    assert counts(index) == (0, 1, 3)
    assert index.land("d") == 1
    assert counts(index) == (0, 1, 3)
    assert remove_doomed(index) == ["a"]
    assert counts(index) == (1, 0, 3)


def test_a_write_that_fails_evicts_nothing() -> None:
    index = full()
    index.begin()
    index.abandon()
    assert index.doomed is None
    assert counts(index) == (1, 0, 3)


def test_the_least_recently_used_goes_first() -> None:
    index = full()
    assert index.touch("a")
    assert index.holds("b")
    index.begin()
    index.land("d")
    assert remove_doomed(index) == ["b"]
    assert not index.touch("b")


def test_blocks_of_other_namespaces_count_and_go_before_all_of_ours() -> None:
    index = DiskIndex(6)
    index.restore(Found(blocks=("a",), others=(("x", 1), ("y", 3))))
    assert counts(index) == (1, 4, 1)
    evicted = []
    for name in "bcde":
        index.begin()
        index.land(name)
        evicted += remove_doomed(index)
    assert evicted == ["x", "y"]
    assert counts(index) == (1, 0, 5)


def test_what_is_too_much_at_the_start_is_doomed_the_oldest_first() -> None:
    index = DiskIndex(3)
    index.restore(Found(tuple("abcdef"), (("x", 9),), (("cut", 1),)))
    assert counts(index) == (0, 1, 2)
    assert remove_doomed(index) == ["cut", "x", "a", "b", "c", "d"]
    assert counts(index) == (1, 0, 2)
    assert index.holds("e")
    assert index.holds("f")


def test_a_dropped_block_takes_its_room_until_it_is_removed() -> None:
    index = full()
    index.drop("b")
    index.drop("never seen")
    assert not index.holds("b")
    assert counts(index) == (1, 1, 2)
    assert remove_doomed(index) == ["b"]
    assert counts(index) == (2, 0, 2)


def test_a_flush_drops_all_of_ours_and_no_other() -> None:
    index = DiskIndex(6)
    index.restore(Found(blocks=("a", "b"), others=(("x", 2),)))
    index.clear()
    assert counts(index) == (2, 4, 0)
    assert remove_doomed(index) == ["a", "b"]
    assert counts(index) == (4, 2, 0)


def test_a_block_that_lands_twice_counts_once() -> None:
    index = full(3)
    index.begin()
    assert index.land("a") == 0
    assert counts(index) == (1, 0, 2)


def test_rests_grow_to_five_minutes_and_are_short_again_after_a_success() -> None:
    rest, now, lengths = Rest(), 100.0, []
    for _ in range(6):
        assert rest.left_s(now) == 0
        rest.failed(now)
        lengths.append(rest.left_s(now))
        now += lengths[-1]
    assert lengths == [30, 60, 120, 240, 300, 300]
    assert rest.troubled
    rest.succeeded()
    assert not rest.troubled
    rest.failed(now)
    assert rest.left_s(now + 10) == pytest.approx(20)
