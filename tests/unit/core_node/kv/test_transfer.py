"""Pieces put together: none is believed that does not stand where it must."""

import pytest

from firstlight.core_node.kv.seal import PIECE_BYTES_MAX, BlockSeals
from firstlight.core_node.kv.transfer import BadBlockError, _Taking
from firstlight.shared.errors import PeerError
from firstlight.shared.proto import blocks_pb2

SEALS = BlockSeals((bytes(32),), "0123456789abcdef")
HASHES = (b"a" * 16, b"b" * 16)
TOTAL = PIECE_BYTES_MAX + 4


def piece(index: int, offset: int, *, absent: bool = False, of: int | None = None) -> object:
    """As an honest giver sends it; `of`: of another block than it says."""
    length = PIECE_BYTES_MAX if offset == 0 else 4
    payload = bytes([65 + index]) * length
    block_hash = HASHES[index if of is None else of]
    return blocks_pb2.Piece(
        index=index,
        offset=offset,
        total=TOTAL,
        payload=b"" if absent else payload,
        mac=SEALS.seal(block_hash, offset, TOTAL, payload),
        absent=absent,
    )


def taking() -> _Taking:
    return _Taking(HASHES, SEALS, TOTAL)


def test_a_block_of_two_pieces_comes_as_one() -> None:
    one = taking()
    assert one.take(piece(0, 0)) is None  # type: ignore[arg-type]
    arrived = one.take(piece(0, PIECE_BYTES_MAX))  # type: ignore[arg-type]
    assert arrived is not None
    assert (arrived.index, arrived.block) == (0, b"A" * TOTAL)


def test_no_block_is_made_of_the_halves_of_two() -> None:
    one = taking()
    one.take(piece(0, 0))  # type: ignore[arg-type]
    with pytest.raises(PeerError, match="absent from"):
        one.take(piece(0, PIECE_BYTES_MAX, absent=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [(1, 0), (0, PIECE_BYTES_MAX)])
def test_pieces_come_in_order(wrong: tuple[int, int]) -> None:
    with pytest.raises(PeerError, match="expected 0 at 0"):
        taking().take(piece(*wrong))  # type: ignore[arg-type]


def test_a_piece_of_another_block_is_bad() -> None:
    with pytest.raises(BadBlockError) as caught:
        taking().take(piece(0, 0, of=1))  # type: ignore[arg-type]
    assert caught.value.block_hash == HASHES[0]
