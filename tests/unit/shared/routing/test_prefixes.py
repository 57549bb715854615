"""Which prefixes a core is expected to hold, for how long, and how far it is believed."""

from firstlight.shared.blocks import BLOCK_TOKENS as FINE_TOKENS
from firstlight.shared.blocks import CHECKPOINT_BLOCKS
from firstlight.shared.routing.prefixes import CORES_MAX, SentPrefixes

BLOCK_TOKENS = CHECKPOINT_BLOCKS * FINE_TOKENS
"""Blocks so long are remembered one by one."""
HASHES = [bytes([i]) for i in range(8)]


def _computed(memory: SentPrefixes, core: str, blocks: int, now: float = 0) -> None:
    memory.computed(core, HASHES[:blocks], expected_tokens=0, cached_tokens=0, now=now)


def test_what_was_computed_at_a_core_is_expected_there_for_ten_minutes() -> None:
    memory = SentPrefixes(block_tokens=BLOCK_TOKENS)
    _computed(memory, "a", 3)
    _computed(memory, "b", 5)
    expected = {"a": 3 * BLOCK_TOKENS, "b": 5 * BLOCK_TOKENS}
    assert memory.resident(HASHES, now=599) == expected
    assert memory.resident(HASHES, now=600) == {}


def test_a_request_on_its_way_is_expected_for_two_seconds() -> None:
    memory = SentPrefixes(block_tokens=BLOCK_TOKENS)
    memory.sent("a", HASHES[:2], now=0)
    assert memory.resident(HASHES, now=1.9) == {"a": 2 * BLOCK_TOKENS}
    assert memory.resident(HASHES, now=2) == {}


def test_a_guess_does_not_shorten_what_is_known() -> None:
    memory = SentPrefixes(block_tokens=BLOCK_TOKENS)
    _computed(memory, "a", 2)
    memory.sent("a", HASHES[:2], now=1)
    assert memory.resident(HASHES, now=100) == {"a": 2 * BLOCK_TOKENS}


def test_another_prompt_shares_nothing() -> None:
    memory = SentPrefixes(block_tokens=BLOCK_TOKENS)
    _computed(memory, "a", 4)
    assert memory.resident([b"x", *HASHES[1:]], now=1) == {}


def test_a_core_that_finds_less_than_expected_is_believed_less() -> None:
    memory = SentPrefixes(block_tokens=BLOCK_TOKENS)
    _computed(memory, "a", 5)
    for _ in range(20):
        memory.computed("a", HASHES[:5], expected_tokens=640, cached_tokens=0, now=1)
    assert memory.resident(HASHES, now=2)["a"] < 40
    for _ in range(20):
        memory.computed("a", HASHES[:5], expected_tokens=640, cached_tokens=640, now=1)
    assert memory.resident(HASHES, now=2)["a"] > 600


def test_a_lost_core_has_nothing() -> None:
    memory = SentPrefixes(block_tokens=BLOCK_TOKENS)
    _computed(memory, "a", 4)
    _computed(memory, "b", 2)
    memory.forget("a")
    assert memory.resident(HASHES, now=1) == {"b": 2 * BLOCK_TOKENS}


def test_a_core_that_came_back_has_what_it_was_sent_since() -> None:
    memory = SentPrefixes(block_tokens=BLOCK_TOKENS)
    _computed(memory, "a", 4)
    memory.forget("a")
    _computed(memory, "a", 2, now=1)
    assert memory.resident(HASHES, now=2) == {"a": 2 * BLOCK_TOKENS}
    memory.withdraw("a", HASHES, now=2)
    assert memory.resident(HASHES, now=2) == {"a": 2 * BLOCK_TOKENS}


def test_of_very_many_cores_the_longest_unused_are_forgotten() -> None:
    memory = SentPrefixes(block_tokens=BLOCK_TOKENS)
    for number in range(CORES_MAX + 1):
        _computed(memory, f"c{number}", 1)
    resident = memory.resident(HASHES, now=1)
    assert len(resident) == CORES_MAX
    assert "c0" not in resident


def test_the_longest_unused_blocks_are_dropped_from_the_end_of_a_prompt() -> None:
    memory = SentPrefixes(blocks_max=4, block_tokens=BLOCK_TOKENS)
    _computed(memory, "a", 4)
    memory.sent("a", [b"y"], now=1)
    assert len(memory) == 4
    assert memory.resident(HASHES, now=1.5) == {"a": 3 * BLOCK_TOKENS}


def test_what_was_not_sent_after_all_is_taken_back() -> None:
    sent, hashes = SentPrefixes(block_tokens=BLOCK_TOKENS), [bytes([n]) * 16 for n in range(4)]
    sent.sent("a", hashes, 0.0)
    sent.withdraw("a", hashes, 0.0)
    assert sent.resident(hashes, 0.0) == {}
    assert len(sent) == 0


def test_taking_back_leaves_what_was_known_before() -> None:
    sent, hashes = SentPrefixes(block_tokens=BLOCK_TOKENS), [bytes([n]) * 16 for n in range(4)]
    sent.computed("a", hashes[:2], expected_tokens=0, cached_tokens=0, now=0.0)
    sent.sent("a", hashes, 1.0)
    sent.withdraw("a", hashes, 1.0)
    assert sent.resident(hashes, 1.0) == {"a": 2 * BLOCK_TOKENS}


def test_the_share_of_requests_that_begin_alike_is_known() -> None:
    system = [bytes([n]) * 16 for n in range(8)]
    sent = SentPrefixes()
    for number in range(10):
        own = [bytes([100 + number]) * 15 + bytes([n]) for n in range(8)]
        sent.sent("a", [*system, *own] if number < 8 else own, 0.0)
    assert sent.traffic([*system, bytes(16)], 128, 0.0) == 0.8
    assert sent.traffic([bytes([99]) * 16] * 8, 128, 0.0) == 0.0


def test_of_sixteen_token_blocks_every_eighth_is_remembered_and_the_last() -> None:
    memory = SentPrefixes()
    hashes = [bytes([n]) * 16 for n in range(100)]
    memory.sent("a", hashes[:60], now=0)
    assert len(memory) == 8
    assert memory.resident(hashes[:60], now=1) == {"a": 60 * FINE_TOKENS}
    assert memory.resident(hashes, now=1) == {"a": 56 * FINE_TOKENS}
    assert memory.resident(hashes[:12], now=1) == {"a": 8 * FINE_TOKENS}
