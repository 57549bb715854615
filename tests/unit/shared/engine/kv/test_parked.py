"""A sequence that loses its place: copied to the host tier and back if that is cheaper."""

import pytest
from doubles import Answers, PagedRunner, alone, engine, request

from firstlight.shared.blocks import block_hashes, root_hash
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.kv.manager import KvManager, Loading, Parked
from firstlight.shared.engine.plan import Turn, TurnEvent
from firstlight.shared.types import Priority

FAR = 10_000
LOW = request("low", range(37), max_tokens=9, priority=Priority.BATCH)
HIGH = request("high", range(60, 64), max_tokens=3, priority=Priority.CRITICAL)


def pushed_aside(**changes: object) -> tuple[Engine, PagedRunner, Answers]:
    """An engine of one place, in which `HIGH` has just taken that of `LOW`, at position 39."""
    limits = {"sequences_max": 1, "host_blocks": 8, "speculation": "off", "prefill_chunk": 39}
    core, runner = engine(**{**limits, **changes})
    answers = Answers()
    core.add(LOW, epoch=1, credit=FAR, now=0.0)
    answers.step(core, 0.0)
    answers.step(core, 0.0)
    assert len(answers.ids["low"]) == 2
    core.add(HIGH, epoch=1, credit=FAR, now=0.0)
    answers.step(core, 0.0)
    return core, runner, answers


def test_what_is_copied_is_not_computed_again_its_last_partial_block_included():
    core, runner, answers = pushed_aside()
    assert (core.counts.preemptions, core.counts.offloads) == (1, 1)
    assert core.host_blocks.used == 3
    answers.drain(core)
    assert runner.rows == [37, 1, 4, 1, 1, *[1] * 7]
    assert answers.ids == {"low": alone(LOW), "high": alone(HIGH)}
    assert core.host_blocks.used == 0


def test_a_step_says_that_nothing_is_to_be_computed_again():
    core, _ = engine(sequences_max=1, host_blocks=8)
    core.add(request("low", range(20), priority=Priority.BATCH), epoch=1, credit=FAR, now=0.0)
    core.step(0.0)
    core.add(HIGH, epoch=1, credit=FAR, now=0.0)
    assert core.step(0.0).turns[0] == TurnEvent("low", Turn.PREEMPTED, known=21, tokens=0)


def test_copies_that_take_longer_than_computing_are_not_made():
    """3 blocks of 128 bytes there and back against 38 tokens at (57 ms − a row) / 37."""
    just = 2 * 3 * 128 / (38 * 57 / 37) * 1000
    for bytes_per_s, offloads in ((just * 0.9, 0), (just * 1.1, 1)):
        core, runner, answers = pushed_aside(copy_bytes_per_s=bytes_per_s)
        assert (core.counts.preemptions, core.counts.offloads) == (1, offloads)
        answers.drain(core)
        assert answers.ids["low"] == alone(LOW)
        if not offloads:
            assert runner.rows[5] == 39 - 32  # two blocks were cached still


def test_nothing_is_copied_while_nobody_knows_how_long_a_copy_takes():
    core, _, answers = pushed_aside(copy_bytes_per_s=None)
    assert (core.counts.preemptions, core.counts.offloads) == (1, 0)
    assert answers.drain(core).ids["low"] == alone(LOW)


@pytest.mark.parametrize(("host_blocks", "offloads"), [(0, 0), (5, 0), (6, 1)])
def test_those_who_wait_hold_at_most_half_of_the_host_tier(host_blocks, offloads):
    core, _, answers = pushed_aside(host_blocks=host_blocks)
    assert core.counts.offloads == offloads
    assert answers.drain(core).ids["low"] == alone(LOW)


def test_a_cancelled_sequence_lets_go_of_what_was_copied():
    core, _, _ = pushed_aside()
    core.cancel("low")
    assert (core.host_blocks.used, core.host_blocks.cached, core.host_blocks.free) == (0, 2, 6)


def test_after_a_flush_it_is_computed_again():
    core, runner, answers = pushed_aside()
    core.flush_cache()
    answers.drain(core)
    assert runner.rows[5] == 39
    assert answers.ids["low"] == alone(LOW)


def test_what_is_not_to_be_trusted_any_more_is_computed_again():
    """Another with the same prefix fails: the copies that the first waits with may be as bad."""
    poison = 90
    runner = PagedRunner(32, poison=frozenset({poison}))
    assert poison not in alone(LOW)
    core, _ = engine(runner, sequences_max=1, host_blocks=8, speculation="off", prefill_chunk=39)
    answers = Answers()
    core.add(LOW, epoch=1, credit=FAR, now=0.0)
    answers.step(core, 0.0)
    bad = request("bad", [*range(36), poison], priority=Priority.CRITICAL)
    core.add(bad, epoch=1, credit=FAR, now=0.0)
    answers.step(core, 0.0)
    assert core.counts.offloads == 1
    assert "not finite" in answers.errors["bad"].message
    answers.drain(core)
    assert runner.rows[2] == 38
    assert answers.ids["low"] == alone(LOW)


def test_what_other_requests_evict_from_the_pool_comes_back_from_where_it_was_copied():
    core, runner, answers = pushed_aside(blocks=6, context_max=96, waiting_max=20)
    for n in range(5):
        other = request(f"o{n}", range(n, n + 70), max_tokens=1, priority=Priority.CRITICAL)
        core.add(other, epoch=1, credit=FAR, now=0.0)
    answers.drain(core)
    assert runner.rows[-7:] == [1] * 7
    assert answers.ids["low"] == alone(LOW)


HASHES = block_hashes(root_hash(tokenizer_hash="t", salt=b"s"), range(48))


def parked(kv: KvManager, tokens: int) -> tuple[list[int], Parked]:
    table: list[int] = []
    assert kv.grow(table, tokens)
    for index in range(tokens // 16):
        kv.publish(table, index, HASHES[index])
    found = kv.park(table, HASHES, tokens, tokens // 16)
    assert found is not None
    return list(table), found


def test_copies_are_planned_for_what_the_host_tier_does_not_have():
    kv = KvManager(4, 8)
    slot = kv.land(HASHES[0])
    table, _ = parked(kv, 40)
    assert slot is not None
    assert [block for block, _ in kv.take_moves().saves] == table[1:]


def test_a_sequence_that_comes_back_in_the_plan_that_pushed_it_aside_keeps_its_tokens():
    kv = KvManager(3, 8)
    table, found = parked(kv, 40)
    kv.release(list(table))
    again: list[int] = []
    assert kv.resume(again, found) == 40
    moves = kv.take_moves()
    assert again[:2] == table[:2]  # were still in the pool
    assert [block for block, _ in moves.saves] == table
    assert moves.fills == ((dict(moves.saves)[table[2]], again[2]),)
    assert kv.host_counts.used == 0


def test_pushed_aside_before_its_blocks_are_filled_it_keeps_the_slots_that_have_them():
    kv = KvManager(3, 8)
    table, found = parked(kv, 40)
    kv.release(table)
    kv.take_moves()
    again: list[int] = []
    kv.resume(again, found)
    twice = kv.park(again, HASHES, 40, 2)
    assert twice is not None
    assert kv.take_moves().saves == ()


def test_a_block_that_was_loaded_meanwhile_takes_the_place_of_the_partial_one():
    kv = KvManager(4, 8)
    table, found = parked(kv, 40)
    kv.release(table)
    kv.take_moves()
    slot = kv.land(HASHES[2])
    loading = Loading(3, 3)
    kv.look(loading, HASHES)
    again: list[int] = []
    assert kv.resume(again, found) == 40
    kv.meet(again, loading, 40)
    assert kv.take_moves().fills == ((slot, again[2]),)
    assert kv.host_counts.used == 0


def flushed_and_pushed_aside() -> tuple[Engine, PagedRunner, Answers]:
    """As `pushed_aside`, but nothing of what `LOW` had computed can be found by its hash."""
    core, runner = engine(sequences_max=1, host_blocks=8, speculation="off", prefill_chunk=39)
    answers = Answers()
    core.add(LOW, epoch=1, credit=FAR, now=0.0)
    answers.step(core, 0.0)
    core.flush_cache()
    core.add(HIGH, epoch=1, credit=FAR, now=0.0)
    answers.step(core, 0.0)
    assert core.counts.offloads == 1
    return core, runner, answers


def test_what_waits_in_the_host_tier_is_not_counted_as_prefill_to_come():
    core, _, _ = pushed_aside()
    assert core.load().queued_prefill_tokens == 1


def test_what_was_flushed_before_it_was_copied_comes_back_and_is_not_found_by_others():
    core, runner, answers = flushed_and_pushed_aside()
    answers.drain(core)
    assert answers.ids["low"] == alone(LOW)
    assert runner.rows == [37, 4, 1, 1, *[1] * 8]
    core.add(request("other", range(37)), epoch=1, credit=FAR, now=0.0)
    assert core.step(0.0).outcomes[0].cached_tokens == 0


def test_nobody_waits_for_loads_of_what_was_copied():
    core, _, answers = flushed_and_pushed_aside()
    core.expect("low", 2, 1e9)
    assert answers.drain(core).ids["low"] == alone(LOW)


def test_what_is_not_to_be_trusted_is_not_copied():
    kv = KvManager(4, 8)
    table, shared = list[int](), list[int]()
    assert kv.grow(table, 16)
    kv.publish(table, 0, HASHES[0])
    assert kv.attach(shared, HASHES, 17) == 16
    kv.discard(table, HASHES[:1])
    assert kv.park(shared, HASHES, 16, 1) is None


def test_a_copy_that_nobody_wants_any_more_is_not_made():
    kv = KvManager(4, 8)
    table, found = parked(kv, 40)
    kv.unpark(found)
    assert [block for block, _ in kv.take_moves().saves] == table[:2]


def test_a_block_behind_one_that_nobody_finds_is_not_found():
    kv, table = KvManager(4, 8), list[int]()
    assert kv.grow(table, 33)
    kv.land(HASHES[1])
    loading = Loading(2, 2)
    kv.look(loading, HASHES)
    kv.meet(table, loading, 16)
    found = kv.park(table, HASHES, 32, 0)
    assert found is not None
    kv.release(table)
    assert kv.resume([], found) == 32
    assert kv.find(HASHES[1])[0] is None
