"""The MAC of a piece of KV."""

from random import Random

from firstlight.core_node.kv.seal import PIECE_BYTES_MAX, BlockSeals, pieces

KEY, OTHER = bytes(32), b"\x01" * 32
HASH = bytes(range(16))
SEALS = BlockSeals((KEY,), "0123456789abcdef")


def test_a_seal_holds_for_its_piece_alone() -> None:
    piece = bytes(range(256))
    mac = SEALS.seal(HASH, 0, 256, piece)
    assert SEALS.holds(mac, HASH, 0, 256, piece)
    assert not SEALS.holds(mac, bytes(16), 0, 256, piece)
    assert not SEALS.holds(mac, HASH, 1, 256, piece)
    assert not SEALS.holds(mac, HASH, 0, 512, piece)
    assert not SEALS.holds(mac, HASH, 0, 256, piece[:-1])
    assert not SEALS.holds(mac[:-1], HASH, 0, 256, piece)
    assert not SEALS.holds(b"", HASH, 0, 256, piece)
    assert not BlockSeals((KEY,), "fedcba9876543210").holds(mac, HASH, 0, 256, piece)
    assert not BlockSeals((OTHER,), SEALS.namespace).holds(mac, HASH, 0, 256, piece)


def test_ten_thousand_mutations_are_all_seen() -> None:
    rng = Random(1)
    piece = rng.randbytes(2048)
    mac = SEALS.seal(HASH, 0, 4096, piece)
    for _ in range(10_000):
        wrong = bytearray(piece)
        kind = rng.randrange(4)
        if kind == 0:  # flipped
            wrong[rng.randrange(2048)] ^= 1 << rng.randrange(8)
        elif kind == 1:  # truncated
            del wrong[rng.randrange(2048) :]
        elif kind == 2:  # two parts swapped
            at = rng.randrange(1, 2048)
            wrong = wrong[at:] + wrong[:at]
        else:  # longer
            wrong += rng.randbytes(rng.randrange(1, 64))
        assert not SEALS.holds(mac, HASH, 0, 4096, wrong)


def test_the_key_before_the_current_one_still_counts() -> None:
    old = BlockSeals((OTHER,), SEALS.namespace).seal(HASH, 0, 3, b"abc")
    both = BlockSeals((KEY, OTHER), SEALS.namespace)
    assert both.holds(old, HASH, 0, 3, b"abc")
    assert both.seal(HASH, 0, 3, b"abc") != old


def test_pieces_cover_a_block_once() -> None:
    assert list(pieces(PIECE_BYTES_MAX)) == [(0, PIECE_BYTES_MAX)]
    assert list(pieces(PIECE_BYTES_MAX + 1)) == [(0, PIECE_BYTES_MAX), (PIECE_BYTES_MAX, 1)]
    assert list(pieces(5)) == [(0, 5)]
