"""Prefixes that stay: pinned by name, or computed for another node to fetch."""

import pytest
from doubles import Answers, PagedRunner, alone, block_of, engine, request

from firstlight.shared.blocks import block_hashes, root_hash
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.plan import Handover
from firstlight.shared.errors import CapacityError, ConfigError, RequestError
from firstlight.shared.types import FinishReason

FAR = 10_000


def hashes(ids) -> tuple[bytes, ...]:
    return tuple(block_hashes(root_hash(tokenizer_hash="t", salt=b"salt"), list(ids)))


def prefilled(core: Engine, name: str, ids, now: float = 0.0) -> Handover:
    core.add(request(name, ids), epoch=3, credit=0, now=now, prefill_only=True)
    for _ in range(50):
        for outcome in core.step(now).outcomes:
            assert outcome.request == name
            assert outcome.handover is not None
            return outcome.handover
    raise AssertionError("no handover")


def served(core: Engine, name: str, ids) -> int | None:
    """Answer a request; returns what was cached of it."""
    core.add(request(name, ids, max_tokens=1), epoch=1, credit=FAR, now=0.0)
    cached = [o.cached_tokens for _ in range(20) for o in core.step(0.0).outcomes]
    assert len(cached) == 1
    return cached[0]


def test_a_prefill_ends_with_the_chain_of_its_full_blocks_and_commits_nothing():
    core, _ = engine()
    core.add(request("p", range(40)), epoch=3, credit=0, now=7.0, prefill_only=True)
    core.step(7.0)
    (outcome,) = core.step(7.0).outcomes
    assert (outcome.ids, outcome.position, outcome.finish) == ((), 40, FinishReason.LENGTH)
    assert outcome.handover == Handover("p", 3, hashes(range(40)), 7.0 + 30.0)
    assert not core.has_work
    assert (core.blocks.used, core.blocks.cached) == (0, 2)
    assert core.counts.handovers == 1


def test_another_node_goes_on_with_what_was_handed_over():
    prefill, _ = engine()
    handover = prefilled(prefill, "p", range(40))
    decode, runner = engine(host_blocks=4)
    asked = request("p", range(40), max_tokens=6)
    decode.add(asked, epoch=1, credit=FAR, now=0.0)
    decode.expect("p", len(handover.hashes), 1.0)
    for block_hash in reversed(handover.hashes):
        payload = prefill.read(block_hash)
        assert payload is not None
        decode.land(block_hash, payload)
    assert Answers().drain(decode).ids["p"] == alone(asked)
    assert runner.rows[0] == 8


def test_a_prompt_of_less_than_a_block_hands_over_nothing():
    core, _ = engine()
    assert prefilled(core, "p", range(9)).hashes == ()


def test_a_prefill_takes_no_hints_and_no_credit():
    core, _ = engine(speculation="always")
    core.add(request("p", range(20)), epoch=1, credit=0, now=0.0, prefill_only=True)
    core.credit("p", FAR)
    core.candidate("p", 20, (1, 2), ("s", "s"))
    assert core.next_positions() == {}
    assert core.step(0.0).rows == 20


def test_what_is_not_finite_is_not_handed_over():
    core, _ = engine(PagedRunner(32, poison=frozenset({19})))
    core.add(request("p", range(20)), epoch=1, credit=0, now=0.0, prefill_only=True)
    result = core.step(0.0)
    assert "not finite" in result.failures[0][2].message
    assert (result.outcomes, core.counts.handovers, core.blocks.cached) == ((), 0, 0)


def test_a_prefill_needs_no_room_for_an_answer():
    core, _ = engine(blocks=4, context_max=64)
    core.add(request("p", range(64), max_tokens=99), epoch=1, credit=0, now=0.0, prefill_only=True)
    with pytest.raises(RequestError, match="context of 64"):
        core.add(request("q", range(65)), epoch=1, credit=0, now=0.0, prefill_only=True)


def test_a_handover_outlives_what_was_used_after_it_until_it_is_released():
    for released, cached in ((False, 32), (True, 0)):
        core, _ = engine(blocks=8, context_max=128)
        handover = prefilled(core, "p", range(33))
        if released:
            core.release(handover)
            core.release(handover)
        for n in range(4):
            served(core, f"o{n}", range(50 + n, 50 + n + 40))
        assert served(core, "again", range(33)) == cached


def test_a_handover_is_let_go_when_its_time_is_over():
    core, _ = engine(handover_s=5.0)
    prefilled(core, "p", range(33), now=1.0)
    core.step(5.9)
    assert core.counts.handovers == 1
    core.step(6.0)
    assert (core.counts.handovers, core.counts.handovers_dropped) == (0, 1)
    assert core.counts.pinned_blocks == 0


def test_beyond_the_most_handovers_the_oldest_is_let_go():
    core, _ = engine(handovers_max=2)
    made = [prefilled(core, f"p{n}", range(n, n + 17)) for n in range(3)]
    assert (core.counts.handovers, core.counts.handovers_dropped) == (2, 1)
    core.release(made[0])
    assert core.counts.handovers == 2
    core.release(made[1])
    assert core.counts.handovers == 1


def test_handovers_give_way_to_newer_ones_when_the_share_of_the_pool_is_full():
    core, _ = engine(blocks=16, pinned_share=0.25)
    prefilled(core, "p0", range(33))
    prefilled(core, "p1", range(1, 34))
    assert core.counts.pinned_blocks == 4
    prefilled(core, "p2", range(2, 19))
    assert (core.counts.handovers, core.counts.pinned_blocks) == (2, 3)


def test_a_prefill_larger_than_the_share_is_handed_over_but_not_pinned():
    core, _ = engine(blocks=16, pinned_share=0.25)
    prefilled(core, "small", range(3, 20))
    handover = prefilled(core, "p", range(100))
    assert core.read(handover.hashes[-1]) == block_of(range(80, 96))
    assert (core.counts.handovers, core.counts.handovers_dropped) == (1, 1)


def test_the_same_request_prefilled_again_is_pinned_once():
    core, _ = engine()
    first = prefilled(core, "p", range(33))
    second = prefilled(core, "p", range(33), now=1.0)
    core.release(first)  # an older one: not what is pinned now
    assert core.counts.handovers == 1
    core.release(second)
    assert core.counts.pinned_blocks == 0


def test_a_pinned_prefix_is_there_after_others_filled_the_pool():
    core, _ = engine(blocks=8, context_max=128)
    core.pin(hashes(range(32)))  # before it is here
    served(core, "system", range(33))
    for n in range(4):
        served(core, f"o{n}", range(50 + n, 50 + n + 60))
    assert served(core, "again", range(33)) == 32
    assert (core.counts.pins, core.counts.pinned_blocks) == (1, 2)
    core.unpin(hashes(range(32)))
    core.unpin(hashes(range(32)))
    for n in range(4):
        served(core, f"u{n}", range(50 + n, 50 + n + 60))
    assert served(core, "gone", range(33)) == 0


def test_a_pinned_prefix_gives_way_when_nothing_else_is_left():
    core, _ = engine(blocks=8, context_max=128, pinned_share=1.0)
    core.pin(hashes(range(96)))
    served(core, "pinned", range(97))
    asked = request("r", range(5, 105), max_tokens=20)
    core.add(asked, epoch=1, credit=FAR, now=0.0)
    assert Answers().drain(core).ids["r"] == alone(asked)


def test_the_last_block_of_a_pinned_prefix_gives_way_first():
    core, _ = engine(blocks=4, context_max=64, pinned_share=1.0)
    served(core, "pinned", range(49))
    core.pin(hashes(range(48)))
    served(core, "other", range(60, 60 + 20))
    assert served(core, "again", range(49)) == 32


def test_more_than_the_share_cannot_be_pinned():
    core, _ = engine(blocks=16, pinned_share=0.25)
    core.pin(hashes(range(48)))
    core.pin(hashes(range(48)))
    core.pin(hashes(range(64)))  # one block more
    with pytest.raises(CapacityError, match="4 of at most 4"):
        core.pin(hashes(range(1, 17)))
    assert (core.counts.pins, core.counts.pinned_blocks) == (2, 4)
    core.unpin(hashes(range(64)))
    assert core.counts.pinned_blocks == 3


def test_a_pin_takes_the_place_of_handovers():
    core, _ = engine(blocks=16, pinned_share=0.25)
    prefilled(core, "p", range(33))
    core.pin(hashes(range(3, 51)))
    assert (core.counts.pins, core.counts.handovers, core.counts.pinned_blocks) == (1, 0, 3)


def test_a_prefix_of_no_block_cannot_be_pinned():
    core, _ = engine()
    with pytest.raises(RequestError, match="no full block"):
        core.pin(())


def test_a_flush_forgets_pins():
    core, _ = engine()
    core.pin(hashes(range(32)))
    prefilled(core, "p", range(33))
    core.flush_cache()
    assert (core.counts.pins, core.counts.handovers, core.counts.pinned_blocks) == (0, 0, 0)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_a_configuration_error(share):
    with pytest.raises(ConfigError, match="pinned_share is"):
        engine(pinned_share=share)
