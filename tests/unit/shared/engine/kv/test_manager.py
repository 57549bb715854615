"""Blocks: taken, shared, published, evicted, and always accounted for."""

from firstlight.shared.blocks import BlockCounts, block_hashes, root_hash
from firstlight.shared.engine.kv.manager import KvManager

ROOT = root_hash(tokenizer_hash="t", salt=b"s")


def hashes(first: int, tokens: int) -> list[bytes]:
    return block_hashes(ROOT, [first, *range(1, tokens)])


def fill(kv: KvManager, first: int, tokens: int) -> list[int]:
    """The table of a sequence of `tokens` ids, all published."""
    table: list[int] = []
    assert kv.grow(table, tokens)
    for index, block_hash in enumerate(hashes(first, tokens)):
        kv.publish(table, index, block_hash)
    return table


def test_a_table_grows_by_whole_blocks_and_by_all_or_none():
    kv, table = KvManager(3), list[int]()
    assert kv.grow(table, 17)
    assert len(table) == 2
    assert not kv.grow(table, 64)
    assert len(table) == 2
    assert kv.counts == BlockCounts(free=1, used=2, cached=0, total=3)


def test_released_blocks_that_were_published_stay_cached():
    kv = KvManager(4)
    kv.release(fill(kv, 0, 40))
    assert kv.counts == BlockCounts(free=2, used=0, cached=2, total=4)


def test_the_longest_prefix_is_found_and_one_token_is_left_to_compute():
    kv, table = KvManager(8), list[int]()
    kv.release(fill(kv, 0, 48))
    assert kv.hit_blocks(hashes(0, 48), 48) == 2
    assert kv.attach(table, hashes(0, 48), 49) == 48
    assert kv.counts == BlockCounts(free=5, used=3, cached=0, total=8)


def test_another_first_id_finds_nothing():
    kv = KvManager(8)
    kv.release(fill(kv, 0, 48))
    assert kv.hit_blocks(hashes(7, 48), 48) == 0


def test_a_shared_block_is_free_only_when_its_last_holder_lets_go():
    kv = KvManager(4)
    first, second = fill(kv, 0, 16), list[int]()
    kv.attach(second, hashes(0, 32), 32)
    kv.release(first)
    assert kv.counts.used == 1
    kv.release(second)
    assert kv.counts == BlockCounts(free=3, used=0, cached=1, total=4)


def test_the_second_to_publish_a_block_takes_the_first_ones_and_frees_its_own():
    kv = KvManager(4)
    first, second = fill(kv, 0, 32), fill(kv, 0, 32)
    assert first == second
    assert kv.counts == BlockCounts(free=2, used=2, cached=0, total=4)


def test_the_least_recently_used_leaf_is_evicted_first():
    kv = KvManager(4)
    kv.release(fill(kv, 1, 32))
    kv.release(fill(kv, 2, 32))
    assert kv.grow([], 16)
    assert (kv.hit_blocks(hashes(1, 48), 48), kv.hit_blocks(hashes(2, 48), 48)) == (1, 2)


def test_using_a_prefix_makes_it_recent():
    kv, table = KvManager(4), list[int]()
    kv.release(fill(kv, 1, 32))
    kv.release(fill(kv, 2, 32))
    kv.attach(table, hashes(1, 48), 48)
    kv.release(table)
    assert kv.grow([], 32)
    assert (kv.hit_blocks(hashes(1, 48), 48), kv.hit_blocks(hashes(2, 48), 48)) == (2, 0)


def test_pinned_blocks_go_last():
    kv = KvManager(4)
    kv.pin(hashes(1, 32))
    kv.release(fill(kv, 1, 32))
    kv.release(fill(kv, 2, 32))
    taken: list[int] = []
    assert kv.grow(taken, 32)
    assert kv.hit_blocks(hashes(1, 48), 48) == 2
    assert kv.grow(taken, 64)
    assert kv.hit_blocks(hashes(1, 48), 48) == 0


def test_trim_gives_back_blocks_beyond_what_is_computed():
    kv, table = KvManager(4), list[int]()
    kv.grow(table, 40)
    kv.trim(table, 16)
    assert kv.counts == BlockCounts(free=3, used=1, cached=0, total=4)


def test_flush_forgets_prefixes_and_leaves_tables_alone():
    kv = KvManager(6)
    kv.release(fill(kv, 1, 32))
    table = fill(kv, 2, 32)
    kv.flush()
    assert kv.counts == BlockCounts(free=4, used=2, cached=0, total=6)
    assert kv.hit_blocks(hashes(2, 48), 48) == 0
    kv.release(table)
    assert kv.counts.free == 6


def test_after_a_flush_no_block_is_published_behind_a_parent_that_nobody_finds():
    kv, table = KvManager(6), list[int]()
    kv.grow(table, 32)
    kv.publish(table, 0, hashes(1, 32)[0])
    kv.flush()
    kv.publish(table, 1, hashes(1, 32)[1])
    kv.release(table)
    assert kv.counts == BlockCounts(free=6, used=0, cached=0, total=6)


def test_discarded_blocks_cannot_be_found():
    kv = KvManager(4)
    freed = kv.discard(fill(kv, 1, 40), hashes(1, 40))
    assert len(freed) == 3
    assert kv.hit_blocks(hashes(1, 40), 40) == 0
    assert kv.counts.free == 4


def test_a_distrusted_block_that_another_holds_is_to_be_scrubbed_when_it_lets_go():
    kv, other = KvManager(6), list[int]()
    table = fill(kv, 1, 40)
    kv.attach(other, hashes(1, 40), 40)
    freed = kv.discard(table, hashes(1, 40))
    assert len(freed) == 1  # two are shared
    assert kv.take_scrubs() == []
    shared = list(other)
    kv.release(other)
    assert sorted(kv.take_scrubs()) == sorted(shared)
    assert kv.take_scrubs() == []
    assert kv.counts.free == 6


def test_a_block_that_is_evicted_before_it_was_filled_is_neither_filled_nor_saved():
    kv, table = KvManager(2, host_slots=4), list[int]()
    chain = hashes(1, 32)
    for block_hash in chain:
        assert kv.land(block_hash) is not None
    kv.take_moves()
    assert kv.attach(table, chain, 33) == 32
    kv.release(table)
    assert kv.grow(table, 32)  # takes both again, for something else, within the same plan
    moves = kv.take_moves()
    assert (moves.saves, moves.fills) == ((), ())
    assert kv.host_counts == BlockCounts(free=2, used=0, cached=2, total=4)


def test_a_pin_that_was_taken_back_leaves_the_leaf_to_be_evicted_first():
    kv = KvManager(2)
    kv.pin(hashes(0, 32))
    kv.release(fill(kv, 0, 32))
    kv.unpin(hashes(0, 32))
    assert kv.grow([], 16)
    assert kv.hit_blocks(hashes(0, 32), 33) == 1


def test_a_block_that_leaves_the_host_tier_before_it_was_copied_there_is_spilled_nowhere():
    """Both are evicted in one plan, and the tier has one slot: what it has is the second alone."""
    kv = KvManager(2, 1)
    first, second = fill(kv, 0, 16), fill(kv, 7, 16)
    (kept,) = second
    kv.release(first)
    kv.release(second)
    assert kv.grow([], 32)
    moves = kv.take_moves()
    assert (moves.spills, moves.saves) == ((), ((kept, 0),))
