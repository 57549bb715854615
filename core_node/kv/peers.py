"""The other cores whose KV is of use here: where they are, how fast they send, whom to leave be.

Names and addresses come with the views of load balancers, and stay when these are gone: who lives
is said by the index. A peer that broke off is left alone for a while, longer each time; a block
whose bytes were wrong is not asked of that peer again.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc.aio

from firstlight.shared.estimate import RttEstimate, Throughput
from firstlight.shared.types import MeshView, NodeInfo, Role

PEERS_MAX = 4096
CHANNELS_MAX = 32
"""Warm connections; beyond them the longest unused is closed."""
RTT_PRIOR_MS = 5.0
BYTES_PER_S_PRIOR = 125e6
"""1 Gbit/s. A wrong guess costs little: what is not measured is only fetched beside computing."""
REST_S = 10.0
REST_S_MAX = 300.0
BUSY_S = 1.0
BAD_BLOCKS_MAX = 4096
BAD_S = 600.0


@dataclass(slots=True)
class Peer:
    """One core."""

    info: NodeInfo
    rtt: RttEstimate = field(default_factory=lambda: RttEstimate(RTT_PRIOR_MS))
    throughput: Throughput = field(default_factory=lambda: Throughput(BYTES_PER_S_PRIOR))
    failures: int = 0
    """In a row."""
    rests_until: float = 0.0


class Peers:
    """Cores of this one's region and numerics class, by name."""

    def __init__(self, info: NodeInfo, connect: Callable[[str], grpc.aio.Channel]) -> None:
        """`connect` makes a channel to an address."""
        self._info = info
        self._connect = connect
        self._peers: OrderedDict[str, Peer] = OrderedDict()
        """Those heard of last at the end."""
        self._channels: OrderedDict[str, grpc.aio.Channel] = OrderedDict()
        """By address."""
        self._bad: OrderedDict[tuple[str, bytes], float] = OrderedDict()

    def seen(self, view: MeshView) -> None:
        """Learn of cores; forget those that leave."""
        for report, _ in view.reports:
            info = report.info
            known = self._peers.get(info.node)
            theirs = info.role is Role.CORE and info.region == self._info.region
            if not theirs or info.node == self._info.node:
                continue
            if report.leaving or info.numerics_class != self._info.numerics_class:
                if known is not None and info.incarnation >= known.info.incarnation:
                    del self._peers[info.node]
                continue
            if known is None or info.incarnation > known.info.incarnation:
                self._peers[info.node] = Peer(info)
            self._peers.move_to_end(info.node)
        while len(self._peers) > PEERS_MAX:
            self._peers.popitem(last=False)

    def names(self) -> Sequence[str]:
        """All that could be asked, those heard of last first."""
        return list(reversed(self._peers))

    def usable(self, name: str, now: float) -> Peer | None:
        """The peer, unless it is unknown or rests."""
        peer = self._peers.get(name)
        return peer if peer is not None and now >= peer.rests_until else None

    def good_blocks(self, name: str, hashes: Sequence[bytes], now: float) -> int:
        """How many leading ones of these blocks may be asked of a peer."""
        if not self._bad:
            return len(hashes)
        for index, block_hash in enumerate(hashes):
            if self._bad.get((name, block_hash), 0.0) > now:
                return index
        return len(hashes)

    def channel(self, peer: Peer) -> grpc.aio.Channel:
        """A connection to it, kept warm."""
        address = peer.info.address
        channel = self._channels.pop(address, None) or self._connect(address)
        self._channels[address] = channel
        return channel

    async def trim(self) -> None:
        """Close what is beyond the limit; call it after a fetch."""
        while len(self._channels) > CHANNELS_MAX:
            _, channel = self._channels.popitem(last=False)
            await channel.close()

    def succeeded(self, peer: Peer) -> None:
        """It sent a block that was proven."""
        peer.failures = 0

    def busy(self, peer: Peer, now: float) -> None:
        """It has no room for another taker."""
        peer.rests_until = now + BUSY_S

    def failed(self, peer: Peer, now: float) -> None:
        """It broke off or was silent."""
        peer.rests_until = now + min(REST_S_MAX, REST_S * 2.0 ** min(peer.failures, 10))
        peer.failures += 1

    def bad(self, peer: Peer, block_hash: bytes, now: float) -> None:
        """It sent bytes that are not this block's."""
        self._bad[(peer.info.node, block_hash)] = now + BAD_S
        while len(self._bad) > BAD_BLOCKS_MAX:
            self._bad.popitem(last=False)

    async def close(self) -> None:
        """Close all connections."""
        while self._channels:
            _, channel = self._channels.popitem()
            await channel.close()
