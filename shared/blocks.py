"""Blocks and their hashes: the one definition of a shared prefix.

A block is 16 tokens of one sequence. Its hash covers every token before it as well, the tokenizer,
the adapter and a salt, so two sequences share a block exactly if all of that is the same. The salt
is made by the edge from the tenant; it is the secret that keeps one tenant from probing what
another has cached.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import pack

Buffer = bytes | bytearray | memoryview
"""A block's KV on its way between tiers and nodes."""
BLOCK_TOKENS = 16
HASH_BYTES = 16
CHECKPOINT_BLOCKS = 8
"""Every so many blocks of a chain one is known to others, and the chain's last full one."""


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Where the blocks of one tier are: free + used + cached = total."""

    free: int = 0
    used: int = 0
    cached: int = 0
    total: int = 0


def tenant_salt(salt_key: bytes, *, tenant: str, group: str | None = None) -> bytes:
    """16 bytes that no client can choose: keyed BLAKE2b-128 over the length-prefixed scope."""
    scope = ("group", group) if group is not None else ("tenant", tenant)
    return blake2b(
        _prefixed(*(part.encode() for part in scope)), key=salt_key, digest_size=16
    ).digest()


def root_hash(*, tokenizer_hash: str, adapter: str = "", salt: bytes) -> bytes:
    """h₀, the hash before the first block."""
    seed = _prefixed(tokenizer_hash.encode(), adapter.encode(), salt)
    return blake2b(seed, digest_size=HASH_BYTES).digest()


def next_hash(parent: bytes, ids: Sequence[int]) -> bytes:
    """hᵢ = BLAKE2b-128(hᵢ₋₁ ‖ 16 ids as u32 little endian)."""
    assert len(ids) == BLOCK_TOKENS, len(ids)
    return blake2b(parent + pack(f"<{BLOCK_TOKENS}I", *ids), digest_size=HASH_BYTES).digest()


def block_hashes(root: bytes, ids: Sequence[int]) -> list[bytes]:
    """Hashes of all full blocks of `ids`, in order."""
    hashes, parent = [], root
    for start in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        parent = next_hash(parent, ids[start : start + BLOCK_TOKENS])
        hashes.append(parent)
    return hashes


def kv_namespace(*parts: str) -> str:
    """16 hex digits: of all that two cores must have in common to use each other's KV.

    `parts`: weights, layout, dtype, numerics class. BLAKE2b-64, length-prefixed.
    """
    return blake2b(_prefixed(*(part.encode() for part in parts)), digest_size=8).hexdigest()


def checkpoints(blocks: int, every: int = CHECKPOINT_BLOCKS) -> list[int]:
    """Indices of those of the first `blocks` blocks that stand for all before them, ascending."""
    marks = list(range(every - 1, blocks, every))
    return marks if blocks % every == 0 else [*marks, blocks - 1]


def blocks_for(tokens: int, block_tokens: int = BLOCK_TOKENS) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // block_tokens)


def _prefixed(*parts: bytes) -> bytes:
    return b"".join(pack("<I", len(part)) + part for part in parts)
