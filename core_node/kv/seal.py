"""What proves that KV bytes are what a core of ours computed: a MAC a piece. Sans-IO.

A block leaves its node, by wire or to disk, in pieces of at most 1 MiB. The MAC of a piece covers
the namespace, the block's hash, where the piece belongs and its bytes, under a key that only cores
hold. So a flipped bit, a piece cut short, one of another block or of another class of numbers are
all the same thing: not there.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from hmac import compare_digest
from struct import pack

from firstlight.shared.blocks import HASH_BYTES, Buffer

PIECE_BYTES_MAX = 1 << 20
MAC_BYTES = 16


class BlockSeals:
    """Seals pieces with the current key; believes those of the key before it too."""

    def __init__(self, keys: Sequence[bytes], namespace: str) -> None:
        assert keys
        self._keys = tuple(keys)
        self.namespace = namespace
        """Of all pieces; see `shared.blocks.kv_namespace`."""

    def seal(self, block_hash: bytes, offset: int, total: int, piece: Buffer) -> bytes:
        """The MAC of `piece`, which stands at `offset` of a block of `total` bytes."""
        return self._mac(self._keys[0], block_hash, offset, total, piece)

    def holds(self, mac: bytes, block_hash: bytes, offset: int, total: int, piece: Buffer) -> bool:
        """Whether `mac` was made for just this piece, by a core that has our keys."""
        return any(
            compare_digest(self._mac(key, block_hash, offset, total, piece), mac)
            for key in self._keys
        )

    def _mac(self, key: bytes, block_hash: bytes, offset: int, total: int, piece: Buffer) -> bytes:
        assert len(block_hash) == HASH_BYTES, len(block_hash)
        name = self.namespace.encode()
        head = pack("<I", len(name)) + name + block_hash + pack("<QQQ", offset, total, len(piece))
        digest = blake2b(head, key=key, digest_size=MAC_BYTES)
        digest.update(piece)
        return digest.digest()


def pieces(total: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of the pieces of a block of `total` bytes."""
    for offset in range(0, total, PIECE_BYTES_MAX):
        yield offset, min(PIECE_BYTES_MAX, total - offset)
