"""How the KV index is spelled in Redis, and what its replies are worth. Sans-IO.

    fl:kv:{h1}:NAMESPACE:hn    a hash: node → "EPOCH:TIER"; h1, hn: hashes of the first and the n-th
                               block in hex. The braces keep a chain in one slot of a cluster.
    fl:kv:{live}:NODE          "EPOCH", with a short life: the node lives, and this is its epoch

Epochs stand there in hex. An entry counts if its node lives in the entry's own epoch: what a node
wrote before its caches were emptied is then nobody's. Anything else that stands there is a miss.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from firstlight.shared.blocks import checkpoints

READS_MAX = 512
"""Checkpoints that one lookup reads."""

_LIVE = b"fl:kv:{live}:"
_ENTRY = re.compile(rb"([0-9a-f]{1,16}):(device|host|disk)")
_DELETE = """\
local value = redis.call('HGET', KEYS[1], ARGV[1])
if value and string.sub(value, 1, #ARGV[2]) == ARGV[2] then
  return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0"""
"""Only what its node wrote in that epoch: it may have written anew by now."""
_EPOCH = re.compile(rb"[0-9a-f]{1,16}")


class Tier(StrEnum):
    """Where a node has a block, the fastest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


_RANK = {tier: rank for rank, tier in enumerate(Tier)}


@dataclass(frozen=True, slots=True)
class Holder:
    """A node that says it has the leading `blocks` blocks of a chain."""

    node: str
    blocks: int
    tier: Tier
    """Of the last of these blocks."""
    epoch: int = field(default=0, compare=False)
    """Of the node, when it said so."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a lookup brought."""

    holders: tuple[Holder, ...]
    """Most blocks first, then the faster tier, then by name."""
    stale: tuple[tuple[int, str, int], ...]
    """(mark, node, epoch) of entries from epochs that are over."""


@dataclass(frozen=True, slots=True)
class Write:
    """One field to set or to delete."""

    first: bytes
    """Hash of the chain's first block."""
    block: bytes
    """Hash of the block that is the checkpoint."""
    node: str
    tier: Tier | None
    """Null: delete it."""
    epoch: int = 0
    """Of what is to be deleted."""


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a batch of writes."""

    lost: tuple[Write, ...]
    """Refused by the server."""
    spoiled: tuple[Write, ...]
    """Whose key is to be deleted: of another type, or with more fields than there are nodes."""


def live_key(node: str) -> bytes:
    """Where a node says that it lives."""
    return _LIVE + node.encode()


def entry_key(namespace: str, first: bytes, block: bytes) -> bytes:
    """Of the block with hash `block`, in a chain whose first block has hash `first`."""
    return f"fl:kv:{{{first.hex()}}}:{namespace}:{block.hex()}".encode()


def epoch_value(epoch: int) -> bytes:
    """What a node's liveness key holds."""
    return b"%x" % epoch


def entry_value(epoch: int, tier: Tier) -> bytes:
    """What a node's field of an entry holds."""
    return b"%x:%b" % (epoch, tier.encode())


def marks_to_read(blocks: int, beyond: int = 0) -> list[int]:
    """Indices of the checkpoints to read for a chain of `blocks` blocks, ascending, at most 512.

    Those up to `beyond` blocks are of no use. If there are too many, every second, third … of the
    rest, counted from the deepest: so a very long prompt finds a holder of all of it as surely as
    one of only its beginning, and at worst misses the last few checkpoints of what a holder has.
    """
    marks = [mark for mark in checkpoints(blocks) if mark >= beyond]
    stride = -(-len(marks) // READS_MAX) or 1
    return marks[::-1][::stride][::-1]


def live_epochs(nodes: Sequence[str], reply: Any) -> dict[bytes, tuple[str, int]]:
    """From the reply to MGET of their keys: field name → (node, epoch) of those that live."""
    found: dict[bytes, tuple[str, int]] = {}
    if isinstance(reply, list) and len(reply) == len(nodes):
        for node, value in zip(nodes, reply, strict=True):
            if isinstance(value, bytes) and _EPOCH.fullmatch(value):
                found[node.encode()] = (node, int(value, 16))
    return found


def judge(
    marks: Sequence[int], entries: Sequence[Any], live: Mapping[bytes, tuple[str, int]]
) -> Found:
    """Who has how much, from the replies to HGETALL of the entries at `marks`, ascending.

    Of a node that was found, what it says of fewer blocks is not looked at.
    """
    best: dict[str, Holder] = {}
    stale: list[tuple[int, str, int]] = []
    for mark, entry in zip(reversed(marks), reversed(entries), strict=True):
        for name, value in _pairs(entry):
            known = live.get(name) if isinstance(name, bytes) else None
            if known is None or known[0] in best:
                continue
            said = _ENTRY.fullmatch(value) if isinstance(value, bytes) else None
            if said is None:
                continue
            node, epoch = known
            written = int(said[1], 16)
            if written == epoch:
                best[node] = Holder(node, mark + 1, Tier(said[2].decode()), epoch)
            elif written < epoch:
                stale.append((mark, node, written))
    order = sorted(best.values(), key=lambda one: (-one.blocks, _RANK[one.tier], one.node))
    return Found(tuple(order), tuple(stale))


def _pairs(entry: Any) -> Iterable[tuple[Any, Any]]:
    """Field and value, one after the other; nothing if the reply is no hash."""
    if not isinstance(entry, list):
        return ()
    return zip(entry[::2], entry[1::2], strict=False)


def write_commands(
    write: Write, namespace: str, *, epoch: int, expiry_s: int
) -> list[tuple[str | bytes | int, ...]]:
    """What makes this write: one command that deletes, or three that set."""
    key = entry_key(namespace, write.first, write.block)
    if write.tier is None:
        return [("EVAL", _DELETE, 1, key, write.node, b"%x:" % write.epoch)]
    value = entry_value(epoch, write.tier)
    return [("HSET", key, write.node, value), ("HLEN", key), ("EXPIRE", key, expiry_s)]


def judge_writes(writes: Sequence[Write], replies: Sequence[Any], *, fields_max: int) -> Written:
    """What became of them, from the replies to all their commands. Spoiled ones are lost, too."""
    lost, spoiled, left = [], [], iter(replies)
    for write in writes:
        done = next(left)
        fields = 0 if write.tier is None else next(left)
        kept = True if write.tier is None else next(left)
        wrong_type = isinstance(done, Exception) and str(done).startswith("WRONGTYPE")
        if wrong_type or (isinstance(fields, int) and fields > fields_max):
            spoiled.append(write)
            lost.append(write)
        elif isinstance(done, Exception) or isinstance(kept, Exception):
            lost.append(write)
    return Written(tuple(lost), tuple(spoiled))
