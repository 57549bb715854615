"""The control stream: nodes report themselves here, and are told of all others.

A stream has no queue: whenever its turn comes it sends the newest view, so that a slow node gets
fewer views and costs no memory. A view goes out every 250 ms, and at once when a node comes or
leaves.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from firstlight.global_lb.membership import Fate, Membership
from firstlight.global_lb.state import mesh_view
from firstlight.shared import rpc, telemetry
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import AuthError, FirstlightError, PeerError
from firstlight.shared.history import Fact, What
from firstlight.shared.history_file import History
from firstlight.shared.proto import control_pb2, control_pb2_grpc
from firstlight.shared.proto.convert import from_report, to_view
from firstlight.shared.tls import Identity, NodeFiles
from firstlight.shared.types import Report, Role

VIEW_EVERY_S = 0.25
VIEW_GAP_S = 0.02
"""Between two views at the least, however often the membership changes."""
EXPIRE_EVERY_S = 0.1
JOINED_MAX = 1024

logger = logging.getLogger("firstlight.lb")

Context = grpc.aio.ServicerContext[control_pb2.Report, control_pb2.MeshView]


class ControlPlane:
    """The membership behind a gRPC service."""

    def __init__(self, node: str, membership: Membership, history: History | None = None) -> None:
        self._history = history
        self._node = node
        self._membership = membership
        self._changed = asyncio.Event()
        self._seq = 0
        self._view = control_pb2.MeshView(lb=node)
        self._view_at = 0.0
        self._joined = 0

    def figures(self) -> dict[str, Fact]:
        """How many nodes live here, and how many are joined."""
        return {"members": len(self._membership.live(monotonic_s())), "joined": self._joined}

    async def start(self, address: str, files: NodeFiles) -> rpc.Listening:
        """Listen for nodes; raises `ConfigError` if the address cannot be bound."""
        return await rpc.server(
            address,
            files,
            lambda server: control_pb2_grpc.add_ControlServicer_to_server(_Servicer(self), server),
        )

    async def keep(self, stop: asyncio.Event) -> None:
        """End leases in time, until `stop`."""
        while not stop.is_set():
            now = monotonic_s()
            gone = self._membership.expire(now)
            if gone:
                logger.warning("leases ended: %s", ", ".join(gone))
                self._note("lease ended", *gone)
                self._wake()
            self._count(now)
            try:
                await asyncio.wait_for(stop.wait(), EXPIRE_EVERY_S)
            except TimeoutError:
                continue

    async def join(
        self, reports: AsyncIterator[control_pb2.Report], context: Context
    ) -> AsyncIterator[control_pb2.MeshView]:
        """One node's stream, from its first report to its end."""
        peer = await rpc.require_role(context, frozenset(Role))
        if self._joined >= JOINED_MAX:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{JOINED_MAX} nodes are the most"
            )
        self._joined += 1
        telemetry.CONTROL_JOINED.labels(role=peer.role).inc()
        reading = asyncio.create_task(self._read(reports, peer))
        try:
            while not reading.done():
                yield self._current()
                await self._next(reading)
            fault = reading.exception()
            if isinstance(fault, FirstlightError):
                logger.warning("%s %s: %s", peer.role, peer.node, fault.message)
                await context.abort(_code(fault), fault.message)
            if fault is not None:
                raise fault
        finally:
            self._joined -= 1
            telemetry.CONTROL_JOINED.labels(role=peer.role).dec()
            reading.cancel()

    async def _read(self, reports: AsyncIterator[control_pb2.Report], peer: Identity) -> None:
        async for message in reports:
            report = from_report(message)
            if (report.info.role, report.info.node) != (peer.role, peer.node):
                raise AuthError(
                    f"report of {report.info.role} {report.info.node!r}, "
                    f"but the certificate is of {peer.role} {peer.node!r}"
                )
            self._take(report)

    def _take(self, report: Report) -> None:
        outcome = self._membership.report(report, monotonic_s())
        telemetry.MESH_REPORTS.labels(fate=outcome.fate).inc()
        if outcome.changed:
            logger.info("%s", outcome.reason)
            self._note(outcome.reason, report.info.node)
            self._wake()
        elif outcome.fate is Fate.REFUSED:
            raise PeerError(outcome.reason)

    def _note(self, how: str, *nodes: str) -> None:
        if self._history is not None:
            for node in nodes:
                self._history.note(What.MEMBER, facts={"member": node, "how": how})

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _next(self, reading: "asyncio.Task[None]") -> None:
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.sleep(VIEW_GAP_S)
            await asyncio.wait(
                (reading, changed),
                timeout=VIEW_EVERY_S - VIEW_GAP_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            changed.cancel()

    def _current(self) -> control_pb2.MeshView:
        """The newest view; made once for all streams that ask at about the same time."""
        now = monotonic_s()
        if now - self._view_at >= VIEW_GAP_S / 2:
            self._seq += 1
            view = mesh_view(self._membership, lb=self._node, seq=self._seq, now=now)
            self._view, self._view_at = to_view(view), now
        return self._view

    def _count(self, now: float) -> None:
        roles = [lease.report.info.role for lease in self._membership.live(now)]
        for role in Role:
            telemetry.MESH_NODES.labels(role=role).set(roles.count(role))


def _code(fault: FirstlightError) -> grpc.StatusCode:
    if isinstance(fault, AuthError):
        return grpc.StatusCode.PERMISSION_DENIED
    return grpc.StatusCode.INVALID_ARGUMENT


class _Servicer(control_pb2_grpc.ControlServicer):
    """What the generated code calls."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def Join(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[control_pb2.MeshView]:
        """One node's stream. An async generator itself: gRPC looks at the function."""
        async for view in self._plane.join(request_iterator, context):
            yield view
