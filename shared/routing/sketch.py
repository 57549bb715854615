"""Which prefixes a core used last, in a kilobyte: a Bloom filter over checkpoints of hot chains.

It travels in reports, so that edges can send a prompt to where its prefix is. It is a guess: what
is not hot is not in it, what was evicted since still is, and of the rest a hit is wrong once in
about 400 times when it is full (k = 4, 16 bits an entry). A wrong one costs a recompute. Block
hashes are uniform already, so their own bytes are the hash functions.

A chain is marked where it is 128, 256 and 512 tokens long, then at every 1,024, and at its end: a
prompt of 12,000 has 15 marks at most, so 512 are the last 34 of those, what a core with 80 GB has
memory for beside an 8B model. At most 1,023 tokens of a shared beginning are not told.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from struct import unpack_from

from firstlight.shared.blocks import BLOCK_TOKENS, HASH_BYTES

SKETCH_BYTES = 1024
CHECKPOINTS_MAX = 512
MARKS_TOKENS = (128, 256, 512)
MARK_TOKENS = 1024
_BITS = SKETCH_BYTES * 8


def marks(blocks: int, block_tokens: int = BLOCK_TOKENS) -> list[int]:
    """Indices of those of the first `blocks` blocks that a sketch has, ascending."""
    tokens = [*MARKS_TOKENS, *range(MARK_TOKENS, blocks * block_tokens + 1, MARK_TOKENS)]
    found = [one // block_tokens - 1 for one in tokens if one % block_tokens == 0]
    found = [index for index in found if index < blocks]
    return found if not blocks or found[-1:] == [blocks - 1] else [*found, blocks - 1]


class HotPrefixes:
    """Checkpoints of the chains that a core used last; the longest unused goes first."""

    def __init__(self, block_tokens: int = BLOCK_TOKENS) -> None:
        """`block_tokens`: of the blocks that it is told of; a simulation's are coarser."""
        self._block_tokens = block_tokens
        self._hot: OrderedDict[bytes, None] = OrderedDict()
        self._bits = bytearray(SKETCH_BYTES)
        self._setters = [0] * _BITS
        """How many checkpoints set each bit: one that goes clears those that are only its own."""

    def touch(self, hashes: Sequence[bytes]) -> None:
        """A chain, from its first block on, is here."""
        for index in reversed(marks(len(hashes), self._block_tokens)):  # the first go last
            block_hash = hashes[index]
            if block_hash in self._hot:
                self._hot.move_to_end(block_hash)
            else:
                self._hot[block_hash] = None
                self._set(block_hash)
        while len(self._hot) > CHECKPOINTS_MAX:
            self._unset(self._hot.popitem(last=False)[0])

    def clear(self) -> None:
        """Nothing is here any more."""
        while self._hot:
            self._unset(self._hot.popitem()[0])

    @property
    def sketch(self) -> bytes:
        """`SKETCH_BYTES` bytes, or none if nothing is hot."""
        return bytes(self._bits) if self._hot else b""

    def _set(self, block_hash: bytes) -> None:
        for place in _places(block_hash):
            self._setters[place] += 1
            self._bits[place >> 3] |= 1 << (place & 7)

    def _unset(self, block_hash: bytes) -> None:
        for place in _places(block_hash):
            self._setters[place] -= 1
            if not self._setters[place]:
                self._bits[place >> 3] ^= 1 << (place & 7)


Probes = list[tuple[int, list[tuple[int, int]]]]
"""Of each checkpoint of a prompt: its tokens, and the bytes and bits that a sketch must have."""


def probes_of(hashes: Sequence[bytes], block_tokens: int = BLOCK_TOKENS) -> Probes:
    """What to look for in every core's sketch, worked out once a request."""
    return [
        (
            (index + 1) * block_tokens,
            [(place >> 3, 1 << (place & 7)) for place in _places(hashes[index])],
        )
        for index in marks(len(hashes), block_tokens)
    ]


def held_tokens(sketch: bytes, probes: Probes) -> int:
    """Prompt tokens that a core with this sketch should hold."""
    if len(sketch) != SKETCH_BYTES:
        return 0
    found = 0
    for tokens, bits in probes:
        for byte, bit in bits:
            if not sketch[byte] & bit:
                return found
        found = tokens
    return found


def _places(block_hash: bytes) -> Iterator[int]:
    assert len(block_hash) == HASH_BYTES, len(block_hash)
    return (word % _BITS for word in unpack_from("<4I", block_hash))
