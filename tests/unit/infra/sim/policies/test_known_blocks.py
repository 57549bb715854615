"""What a router believes to be cached where: what was sent, the latest longest."""

import pytest

from firstlight.infra.sim.policies import known_blocks
from firstlight.infra.sim.policies.known_blocks import KnownBlocks


def test_each_server_has_the_beginning_that_was_sent_there() -> None:
    known = KnownBlocks(100)
    known.add(7, [1, 2, 3], 0.0)
    known.add(9, [1, 2, 8], 0.0)
    known.add(11, [5], 0.0)
    assert known.matched([1, 2, 3, 4], 0.0) == {7: 3, 9: 2}


def test_what_follows_a_gap_does_not_count() -> None:
    known = KnownBlocks(100)
    known.add(7, [3], 0.0)
    known.add(7, [1], 0.0)
    assert known.matched([1, 2, 3], 0.0) == {7: 1}


def test_a_prompt_without_blocks_matches_nothing() -> None:
    known = KnownBlocks(100)
    known.add(7, [1], 0.0)
    assert known.matched([], 0.0) == {}


def test_a_whole_match_is_found_on_every_server() -> None:
    known = KnownBlocks(100)
    for server in range(70):
        known.add(server, [1, 2], 0.0)
    assert known.matched([1, 2], 0.0) == dict.fromkeys(range(70), 2)


def test_beyond_the_limit_the_end_of_what_was_sent_first_goes_first() -> None:
    known = KnownBlocks(4)
    known.add(7, [1, 2, 3], 0.0)
    known.add(7, [8, 9], 0.0)
    assert known.count(7) == 4
    assert known.matched([1, 2, 3], 0.0) == {7: 2}
    assert known.matched([8, 9], 0.0) == {7: 2}


def test_a_prefix_that_is_sent_again_stays() -> None:
    known = KnownBlocks(3)
    known.add(7, [1], 0.0)
    known.add(7, [8, 9], 0.0)
    known.add(7, [1], 0.0)
    known.add(7, [5], 0.0)
    assert known.matched([1], 0.0) == {7: 1}
    assert known.matched([8, 9], 0.0) == {7: 1}


def test_one_server_forgets_without_another() -> None:
    known = KnownBlocks(1)
    known.add(7, [1], 0.0)
    known.add(9, [1], 0.0)
    known.add(7, [2], 0.0)
    assert known.matched([1], 0.0) == {9: 1}


def test_a_prompt_longer_than_the_limit_is_known_by_its_beginning() -> None:
    known = KnownBlocks(2)
    known.add(7, [1, 2, 3, 4], 0.0)
    assert known.matched([1, 2, 3, 4], 0.0) == {7: 2}


def test_blocks_go_when_their_time_is_over() -> None:
    known = KnownBlocks(100, ttl_s=2.0)
    known.add(7, [1, 2], 0.0)
    known.add(7, [1], 1.5)
    assert known.matched([1, 2], 2.0) == {7: 2}
    assert known.matched([1, 2], 2.1) == {7: 1}
    assert known.matched([1, 2], 4.0) == {}
    assert known.count(7) == 0


def test_beyond_so_many_servers_further_ones_are_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_blocks, "SERVERS_MAX", 2)
    known = KnownBlocks(100)
    for server in (7, 9, 11):
        known.add(server, [1], 0.0)
    assert known.matched([1], 0.0) == {7: 1, 9: 1}
