"""How a node keeps its place in the mesh: one control stream to every load balancer, for ever.

A load balancer that is gone is never an error: the node goes on with what it last heard, and tries
again after a wait that grows to 1 s, with full jitter: a replica that starts is not overrun, and
has heard of all nodes within 2 s.

A node drains while any load balancer last told it to, and until that one says otherwise: one that
does not know, or is gone, takes nothing back.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import grpc
import grpc.aio

from firstlight.shared import lifecycle, rpc, telemetry
from firstlight.shared.errors import PeerError
from firstlight.shared.proto.convert_mesh import from_view, to_report
from firstlight.shared.retry import full_jitter_s
from firstlight.shared.tls import NodeFiles
from firstlight.shared.types import Demand, Following, Load, MeshView, NodeInfo, Report, Role

REPORT_EVERY_S = 0.25
VIEW_SILENT_S = 2.0
"""A load balancer that sends no view for this long is left and joined anew."""
BACKOFF_BASE_S = 0.1
BACKOFF_MAX_S = 1.0
LEAVE_S = 0.5
"""How long a node that stops waits for its last word to get away."""

_GONE = (grpc.aio.AioRpcError, PeerError, OSError, asyncio.InvalidStateError)
"""How a stream ends: a timeout is an `OSError`, as is a certificate that is being replaced; gRPC
says the last to a write after the end.
"""

logger = logging.getLogger("firstlight.join")

Rtts = tuple[tuple[str, float], ...]


class Joiner:
    """Reports this node to load balancers, and hands on the views that they send."""

    def __init__(
        self,
        info: NodeInfo,
        files: NodeFiles,
        addresses: Sequence[str],
        *,
        load: Callable[[], Load],
        rtt_ms: Callable[[], Rtts] = lambda: (),
        sketch: Callable[[], bytes] = lambda: b"",
        demand: Callable[[], Demand | None] = lambda: None,
        following: Callable[[], Following | None] = lambda: None,
        on_view: Callable[[MeshView], None] = lambda view: None,
        on_drain: Callable[[bool], None] = lambda drain: None,
        rng: Random,
    ) -> None:
        """Raise `ConfigError` for an address that is none.

        `on_drain` hears when this node is told to drain, and when no longer.
        """
        for address in addresses:
            rpc.split_address(address)
        self._info = info
        self._files = files
        self._addresses = tuple(dict.fromkeys(addresses))
        self._load = load
        self._rtt_ms = rtt_ms
        self._sketch = sketch
        self._demand, self._following = demand, following
        self._on_view, self._on_drain = on_view, on_drain
        self._drained_by: set[str] = set()
        """Addresses of load balancers that last said that this node is to drain."""
        self._rng = rng
        self._seq = 0
        self.joined: set[str] = set()
        """Addresses of load balancers that this node hears now."""

    @asynccontextmanager
    async def member(self, stop: asyncio.Event) -> AsyncIterator[None]:
        """A member of the mesh while the block runs; says that it leaves at the end.

        `stop` is set if joining fails by a bug.
        """
        leave = asyncio.Event()
        async with lifecycle.beside(self.run(leave), stop) as task:
            try:
                yield
            finally:
                leave.set()
                await asyncio.wait((task,), timeout=2 * LEAVE_S)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then tells every load balancer that this node leaves."""
        async with asyncio.TaskGroup() as streams:
            for address in self._addresses:
                streams.create_task(self._keep(address, stop))

    async def _keep(self, address: str, stop: asyncio.Event) -> None:
        failures = 0
        while not stop.is_set():
            try:
                await self._join(address, stop)
            except _GONE as error:
                failures = 0 if address in self.joined else failures + 1
                if failures <= 1:
                    logger.warning("load balancer %s: %s", address, _words(error))
            finally:
                if address in self.joined:
                    self.joined.remove(address)
                    telemetry.CONTROL_LOSSES.labels(role=self._info.role).inc()
            wait_s = full_jitter_s(failures, self._rng, base_s=BACKOFF_BASE_S, max_s=BACKOFF_MAX_S)
            await _wait(stop, wait_s)

    async def _join(self, address: str, stop: asyncio.Event) -> None:
        """One stream, until it breaks or this node stops."""
        async with rpc.channel(address, self._files, Role.LB) as channel:
            call = rpc.join(channel)
            reading = asyncio.create_task(self._read(call, address))
            writing = asyncio.create_task(self._write(call, stop))
            try:
                await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    reading.result()
                    raise PeerError("ended the control stream")
                writing.result()
                await asyncio.wait((reading,), timeout=LEAVE_S)
            finally:
                reading.cancel()
                writing.cancel()
                call.cancel()
                await asyncio.gather(reading, writing, return_exceptions=True)

    async def _write(self, call: rpc.JoinCall, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await call.write(to_report(self.report()))
            await _wait(stop, REPORT_EVERY_S)
        await call.write(to_report(self.report(leaving=True)))
        await call.done_writing()

    async def _read(self, call: rpc.JoinCall, address: str) -> None:
        while True:
            message = await asyncio.wait_for(call.read(), VIEW_SILENT_S)
            if not isinstance(message, rpc.View):  # the end of the stream
                return
            view = from_view(message)
            if address not in self.joined:
                self.joined.add(address)
                logger.info("joined load balancer %s at %s", view.lb, address)
            self.heard_drain(view, address)
            self._on_view(view)

    def heard_drain(self, view: MeshView, address: str) -> None:
        """Take what the load balancer at `address` says of who is to drain."""
        before = bool(self._drained_by)
        if self._info.node in view.draining:
            self._drained_by.add(address)
        elif view.draining_whole:
            self._drained_by.discard(address)
        if before != bool(self._drained_by):
            logger.warning("told to drain" if self._drained_by else "told not to drain any more")
            self._on_drain(bool(self._drained_by))

    def report(self, *, leaving: bool = False) -> Report:
        """The next word of this node."""
        self._seq += 1
        load = self._load()
        return Report(
            info=self._info,
            seq=self._seq,
            load=replace(load, draining=load.draining or bool(self._drained_by)),
            rtt_ms=self._rtt_ms(),
            leaving=leaving,
            sketch=self._sketch(),
            demand=self._demand(),
            following=self._following(),
        )


async def _wait(stop: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), timeout_s)
    except TimeoutError:
        return


def _words(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name.lower()}: {error.details()}"
    if isinstance(error, TimeoutError):
        return f"no view for {VIEW_SILENT_S} s"
    return str(error)
