"""All that a core remembers beyond its engine, put together: disk, index, peers, loads.

    engine ─ wanted, met, held ─► loader ◄─ disk · index · peers ─ land ─► engine
    peers ─ Fetch ─► service ─ read ─► engine, then disk

A part that is not configured, or has failed, is a part that never has anything.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import grpc.aio

from firstlight.core_node.backends.backend import Batch
from firstlight.core_node.kv.disk import DiskTier
from firstlight.core_node.kv.index import IndexConfig, KvIndex
from firstlight.core_node.kv.index_keys import Tier
from firstlight.core_node.kv.loader import Engine, Loader
from firstlight.core_node.kv.peers import Peers
from firstlight.core_node.kv.seal import BlockSeals
from firstlight.core_node.kv.transfer import BlocksService
from firstlight.shared import lifecycle
from firstlight.shared.blocks import BlockCounts
from firstlight.shared.redis_client import Client
from firstlight.shared.routing.fetch import Way
from firstlight.shared.routing.sketch import HotPrefixes
from firstlight.shared.types import MeshView, NodeInfo


class Lender(Engine, Protocol):
    """What is needed of a backend: to take blocks in, and to give them to others."""

    async def read(self, hashes: Sequence[bytes]) -> list[bytes | None]:
        """The KV of blocks, None where it is not here. Raises `CapacityError`."""
        ...

    def host_blocks(self) -> BlockCounts:
        """Where the room of the host tier is."""
        ...


class KvMemory:
    """One core's. Made when the model is loaded; `serving` while the core serves."""

    def __init__(
        self,
        config: IndexConfig,
        client: Client | None,
        info: NodeInfo,
        backend: Lender,
        *,
        disk: DiskTier | None,
        seals: BlockSeals,
        block_bytes: int,
        connect: Callable[[str], grpc.aio.Channel],
        ways: Collection[Way] = tuple(Way),
    ) -> None:
        """`client`: of the index that `config` describes. `connect`: a channel to an address.

        `ways`: how a prefix from elsewhere may come.
        """
        self._backend, self._disk = backend, disk
        self._hot = HotPrefixes()
        self._peers = Peers(info, connect)
        self._index = KvIndex(
            client,
            namespace=seals.namespace,
            node=info.node,
            epoch=info.incarnation,
            peers=self._peers.names,
            config=config,
        )
        self._loader = Loader(
            backend,
            index=self._index,
            disk=disk,
            peers=self._peers,
            seals=seals,
            block_bytes=block_bytes,
            host_blocks=backend.host_blocks().total,
            ways=ways,
        )
        self.service = BlocksService(self._read, seals, block_bytes, absent=self._index.gone)
        """Gives blocks to other cores."""

    @asynccontextmanager
    async def serving(self, stop: asyncio.Event) -> AsyncIterator[None]:
        """Keep our place in the index while the block runs."""
        try:
            async with lifecycle.beside(self._index.run(stop), stop):
                yield
        finally:
            await self._loader.close()
            await self._peers.close()
            await self._index.close()

    def deliver(self, batch: Batch) -> None:
        """What the engine did; called on the event loop."""
        if batch.flushed:
            self._flush()
        self._loader.deliver(batch)
        for chain in batch.held:
            self._hot.touch(chain)
            self._index.held(chain, Tier.DEVICE)
            if self._disk is not None:
                self._disk.touch(chain)

    def seen(self, view: MeshView) -> None:
        """What a load balancer says of the mesh."""
        self._peers.seen(view)

    @property
    def sketch(self) -> bytes:
        """Which prefixes are here, roughly; see `shared.routing.sketch`."""
        return self._hot.sketch

    def disk_blocks(self) -> BlockCounts:
        """Where the room of the disk tier is."""
        return BlockCounts() if self._disk is None else self._disk.counts()

    def _flush(self) -> None:
        """The caches are emptied: tell nobody any more what was here, and bring nothing back."""
        self._loader.cancel()
        self._hot.clear()
        self._index.forget_all()

    async def _read(self, hashes: Sequence[bytes]) -> list[bytes | None]:
        found = await self._backend.read(hashes)
        if self._disk is None:
            return found
        return [
            block if block is not None else await asyncio.to_thread(self._disk.read, block_hash)
            for block, block_hash in zip(found, hashes, strict=True)
        ]
