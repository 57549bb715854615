"""What a decider believes each server has cached: the blocks of what it sent there. Sans-IO.

Routers keep this as a radix tree of text or of hashes (SGLang, production-stack, AIBrix, llm-d).
Here a block's id already stands for all tokens up to its end, so a set of ids for each server says
the same. The servers of a block are bits of one integer: a prompt of a hundred blocks is matched
against all servers in one walk.

A server's blocks have a limit: beyond it those not sent for longest are forgotten, the end of a
prefix before its beginning, as a tree loses leaves first. Beyond `SERVERS_MAX` servers ever seen,
further ones are not remembered at all.
"""

from collections.abc import Sequence
from math import inf

SERVERS_MAX = 4096


class KnownBlocks:
    """Blocks by server, the least recently sent forgotten first."""

    def __init__(self, blocks_max: int, ttl_s: float = inf) -> None:
        self.blocks_max = blocks_max
        self.ttl_s = ttl_s
        self._holders: dict[int, int] = {}
        """Bits of the servers that have a block."""
        self._sent_s: dict[int, dict[int, float]] = {}
        """When a server's blocks were sent; the oldest first."""
        self._bits: dict[int, int] = {}
        self._servers: dict[int, int] = {}

    def matched(self, blocks: Sequence[int], now_s: float) -> dict[int, int]:
        """How many of the first blocks each server has; servers that have none are not in it."""
        if self.ttl_s < inf:
            for server in self._sent_s:
                self._expire(server, now_s)
        found: dict[int, int] = {}
        alive = self._holders.get(blocks[0], 0) if blocks else 0
        for depth, block in enumerate(blocks):
            still = alive & self._holders.get(block, 0)
            self._note(found, alive ^ still, depth)
            alive = still
            if not alive:
                break
        self._note(found, alive, len(blocks))
        return found

    def add(self, server: int, blocks: Sequence[int], now_s: float) -> None:
        """A prompt of these blocks went to a server."""
        bit = self._bit(server)
        if not bit:
            return
        sent_s, holders = self._sent_s[server], self._holders
        for block in reversed(blocks):  # its beginning is remembered longest
            sent_s.pop(block, None)
            sent_s[block] = now_s
            holders[block] = holders.get(block, 0) | bit
        while len(sent_s) > self.blocks_max:
            self._forget(server, next(iter(sent_s)))

    def count(self, server: int) -> int:
        """How many blocks a server is believed to have."""
        return len(self._sent_s.get(server, ()))

    def _note(self, found: dict[int, int], bits: int, depth: int) -> None:
        while bits:
            bit = bits & -bits
            found[self._servers[bit]] = depth
            bits ^= bit

    def _bit(self, server: int) -> int:
        if server not in self._bits and len(self._bits) < SERVERS_MAX:
            bit = 1 << len(self._bits)
            self._bits[server], self._servers[bit], self._sent_s[server] = bit, server, {}
        return self._bits.get(server, 0)

    def _expire(self, server: int, now_s: float) -> None:
        sent_s = self._sent_s[server]
        while sent_s:
            block = next(iter(sent_s))
            if now_s - sent_s[block] <= self.ttl_s:
                return
            self._forget(server, block)

    def _forget(self, server: int, block: int) -> None:
        del self._sent_s[server][block]
        left = self._holders[block] & ~self._bits[server]
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]
