"""A kilobyte that says which prefixes a core holds."""

from firstlight.shared.blocks import block_hashes, root_hash
from firstlight.shared.routing.sketch import (
    CHECKPOINTS_MAX,
    SKETCH_BYTES,
    HotPrefixes,
    held_tokens,
    marks,
    probes_of,
)


def chain(name: int, blocks: int) -> list[bytes]:
    root = root_hash(tokenizer_hash="t", salt=bytes(16))
    return block_hashes(root, [name, *range(1, blocks * 16)])


def sketched_tokens(sketch: bytes, hashes: list[bytes]) -> int:
    return held_tokens(sketch, probes_of(hashes))


def test_nothing_hot_is_an_empty_sketch_and_holds_nothing() -> None:
    assert HotPrefixes().sketch == b""
    assert sketched_tokens(b"", chain(0, 20)) == 0


def test_a_chain_is_known_up_to_its_last_checkpoint_and_by_its_own_end() -> None:
    hot = HotPrefixes()
    hot.touch(chain(0, 140))
    assert len(hot.sketch) == SKETCH_BYTES
    assert sketched_tokens(hot.sketch, chain(0, 140)) == 140 * 16
    assert sketched_tokens(hot.sketch, chain(0, 150)) == 2048
    assert sketched_tokens(hot.sketch, chain(0, 100)) == 1024
    assert sketched_tokens(hot.sketch, chain(0, 12)) == 128
    assert sketched_tokens(hot.sketch, chain(1, 140)) == 0


def test_a_prompt_of_twelve_thousand_tokens_has_fifteen_marks() -> None:
    assert len(marks(750)) == 15
    assert marks(70) == [7, 15, 31, 63, 69]
    assert marks(0) == []
    assert marks(5) == [4]


def test_blocks_of_five_hundred_and_twelve_are_marked_at_the_same_lengths() -> None:
    assert [(mark + 1) * 512 for mark in marks(9, 512)] == [512, 1024, 2048, 3072, 4096, 4608]


def test_a_flush_empties_it() -> None:
    hot = HotPrefixes()
    hot.touch(chain(0, 20))
    hot.clear()
    assert hot.sketch == b""


def test_the_longest_unused_chains_are_dropped() -> None:
    hot = HotPrefixes()
    for name in range(CHECKPOINTS_MAX + 100):
        hot.touch(chain(name, 8))
    known = [sketched_tokens(hot.sketch, chain(n, 8)) > 0 for n in range(CHECKPOINTS_MAX + 100)]
    assert all(known[100:])
    assert sum(known[:100]) <= 3


def test_a_sketch_is_that_of_its_hot_chains_alone_whatever_was_hot_before() -> None:
    hot, anew = HotPrefixes(), HotPrefixes()
    for name in range(3 * CHECKPOINTS_MAX):
        hot.touch(chain(name, 8))
        if name >= 2 * CHECKPOINTS_MAX:
            anew.touch(chain(name, 8))
    assert hot.sketch == anew.sketch
    hot.clear()
    hot.touch(chain(1, 8))
    anew.clear()
    anew.touch(chain(1, 8))
    assert hot.sketch == anew.sketch


def test_a_full_sketch_is_wrong_less_than_once_in_a_hundred_times() -> None:
    hot = HotPrefixes()
    for name in range(CHECKPOINTS_MAX):
        hot.touch(chain(name, 8))
    wrong = sum(sketched_tokens(hot.sketch, chain(10_000 + n, 8)) > 0 for n in range(2000))
    assert wrong < 20


def test_a_sketch_of_another_size_says_nothing() -> None:
    assert sketched_tokens(b"\xff" * 512, chain(0, 8)) == 0
