"""What is still to be written to the KV index."""

from collections.abc import Sequence

import pytest

from firstlight.core_node.kv import index_queue
from firstlight.core_node.kv.index_keys import Tier
from firstlight.core_node.kv.index_queue import WriteQueue

CHAIN = [bytes([number]) * 16 for number in range(1, 41)]


@pytest.fixture
def queue() -> WriteQueue:
    return WriteQueue("us", refresh_s=100.0)


def taken(queue: WriteQueue) -> Sequence[int]:
    """Which blocks of CHAIN are to be written."""
    return [CHAIN.index(write.block) for write in queue.take(1000)]


def test_a_chain_is_written_at_its_checkpoints(queue: WriteQueue) -> None:
    queue.hold(CHAIN[:20], Tier.DEVICE, 0.0)
    writes = queue.take(100)
    assert [(w.first, w.block, w.node, w.tier) for w in writes] == [
        (CHAIN[0], CHAIN[mark], "us", Tier.DEVICE) for mark in (7, 15, 19)
    ]
    assert len(queue) == 0


def test_what_was_written_lately_is_not_written_again(queue: WriteQueue) -> None:
    queue.hold(CHAIN[:16], Tier.DEVICE, 0.0)
    queue.hold(CHAIN[:24], Tier.DEVICE, 99.0)
    assert taken(queue) == [7, 15, 23]


def test_it_is_written_again_when_half_its_life_is_over(queue: WriteQueue) -> None:
    queue.hold(CHAIN[:16], Tier.DEVICE, 0.0)
    queue.take(100)
    queue.hold(CHAIN[:16], Tier.DEVICE, 100.0)
    assert taken(queue) == [7, 15]


def test_another_tier_is_news(queue: WriteQueue) -> None:
    queue.hold(CHAIN[:8], Tier.DEVICE, 0.0)
    queue.hold(CHAIN[:8], Tier.HOST, 0.0)
    assert [write.tier for write in queue.take(9)] == [Tier.DEVICE, Tier.HOST]


def test_a_lost_write_comes_again_and_is_counted(queue: WriteQueue) -> None:
    queue.hold(CHAIN[:16], Tier.DEVICE, 0.0)
    queue.lost(queue.take(1))
    queue.hold(CHAIN[:16], Tier.DEVICE, 1.0)
    assert taken(queue) == [15, 7]
    assert queue.dropped == 1


def test_beyond_its_limit_the_oldest_write_is_dropped_and_comes_again(
    queue: WriteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_queue, "WRITES_MAX", 2)
    queue.hold(CHAIN[:24], Tier.DEVICE, 0.0)
    assert queue.dropped == 1
    assert taken(queue) == [15, 23]
    queue.hold(CHAIN[:24], Tier.DEVICE, 0.0)
    assert taken(queue) == [7]


def test_what_it_remembers_is_bounded_and_the_oldest_goes_first(
    queue: WriteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_queue, "REMEMBERED_MAX", 2)
    queue.hold(CHAIN[:24], Tier.DEVICE, 0.0)
    queue.take(100)
    queue.hold(CHAIN[:16], Tier.DEVICE, 0.0)
    assert taken(queue) == [7, 15]


def test_a_server_that_lost_its_data_is_told_everything_again(queue: WriteQueue) -> None:
    queue.hold(CHAIN[:16], Tier.DEVICE, 0.0)
    queue.take(100)
    queue.forget_written()
    queue.hold(CHAIN[:16], Tier.DEVICE, 0.0)
    assert taken(queue) == [7, 15]


def test_when_the_caches_are_emptied_nothing_waits_any_more(queue: WriteQueue) -> None:
    queue.hold(CHAIN[:16], Tier.DEVICE, 0.0)
    queue.clear()
    assert taken(queue) == []
    queue.hold(CHAIN[:8], Tier.DEVICE, 0.0)
    assert taken(queue) == [7]


def test_what_we_turned_out_not_to_have_may_be_written_again(queue: WriteQueue) -> None:
    queue.hold(CHAIN[:16], Tier.DEVICE, 0.0)
    queue.delete(CHAIN, [15], "us", 7)
    queue.hold(CHAIN[:16], Tier.DEVICE, 0.0)
    assert [write.tier for write in queue.take(9)] == [Tier.DEVICE, Tier.DEVICE, None, Tier.DEVICE]


def test_a_deletion_of_anothers_field_changes_nothing_of_ours(queue: WriteQueue) -> None:
    queue.hold(CHAIN[:8], Tier.DEVICE, 0.0)
    queue.delete(CHAIN, [7], "them", 9)
    queue.hold(CHAIN[:8], Tier.DEVICE, 0.0)
    assert [(write.node, write.tier, write.epoch) for write in queue.take(9)] == [
        ("us", Tier.DEVICE, 0),
        ("them", None, 9),
    ]
