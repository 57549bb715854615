"""Pieces put together: none is believed that does not stand where it must. And how many come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.core_node.kv.seal import PIECE_BYTES_MAX, BlockSeals
from firstlight.core_node.kv.transfer import WINDOW_BYTES_MAX, BadBlockError, Window, _Taking
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


BLOCK_BYTES = 32 << 10


def ahead_bytes(bytes_per_s: float, *, block_bytes: int = BLOCK_BYTES) -> int:
    """How far a giver may be ahead after a second in which so much came, a block at a time."""
    window, come_bytes = Window(block_bytes, 1.0), 0
    while come_bytes < bytes_per_s:
        come_bytes += min(block_bytes, PIECE_BYTES_MAX)
        window.widened(come_bytes, come_bytes / bytes_per_s)
    return window.granted_bytes - come_bytes


def test_a_fast_giver_may_be_far_ahead_and_a_slow_one_only_by_two_blocks() -> None:
    assert ahead_bytes(1e9) > WINDOW_BYTES_MAX * 0.7
    assert ahead_bytes(1e5) <= 2 * BLOCK_BYTES


def test_what_is_on_the_way_comes_within_a_quarter_of_a_second() -> None:
    for bytes_per_s in (1e6, 1e7, 5e7):
        assert 0.15 < ahead_bytes(bytes_per_s) / bytes_per_s <= 0.25


@given(
    st.integers(1, 4 << 20),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=200),
)
def test_a_giver_always_has_credit_for_the_next_piece(
    block_bytes: int, times_s: list[float]
) -> None:
    window, come_bytes, took_s = Window(block_bytes, 1.0), 0, 0.0
    piece_bytes = min(block_bytes, PIECE_BYTES_MAX)
    for time_s in times_s:
        assert window.granted_bytes - come_bytes >= piece_bytes
        come_bytes, took_s = come_bytes + piece_bytes, took_s + time_s
        window.widened(come_bytes, took_s)


def test_a_window_grows_over_a_round_trip_that_is_longer_than_what_it_holds_otherwise() -> None:
    window, come_bytes, rtt_s = Window(1 << 20, 400.0), 0, 0.4
    first = window.granted_bytes
    for trip in range(1, 9):  # all that is granted comes within each round trip
        come_bytes = window.granted_bytes
        window.widened(come_bytes, trip * rtt_s)
    assert window.granted_bytes - come_bytes > 2 * first
