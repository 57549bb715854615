"""The control stream: nodes report themselves here, and are told of all others.

A view goes out every 250 ms, and at once when a node comes, leaves or falls silent. What a node
says that cannot be costs its report, not its stream: it is counted, named once in the log, and the
last good word stays.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import grpc.aio

from firstlight.global_lb import meter
from firstlight.global_lb.balance import STEP_EVERY_S, Balance
from firstlight.global_lb.board import Board
from firstlight.global_lb.drains import Drains
from firstlight.global_lb.feed import Feed
from firstlight.global_lb.membership import Fate, Membership
from firstlight.global_lb.scale import Scaler
from firstlight.shared import rpc, telemetry
from firstlight.shared.clock import monotonic_s
from firstlight.shared.complaints import Complaints
from firstlight.shared.errors import AuthError, BadNumberError, FirstlightError, PeerError
from firstlight.shared.history import Fact, What
from firstlight.shared.history_file import History
from firstlight.shared.proto import control_pb2
from firstlight.shared.proto.convert import from_node
from firstlight.shared.proto.convert_mesh import from_report
from firstlight.shared.tls import Identity, NodeFiles
from firstlight.shared.types import MeshView, NodeInfo, Report, Role

VIEW_EVERY_S = 0.25
VIEW_GAP_S = 0.02
"""Between two views at the least, however often the membership changes."""
EXPIRE_EVERY_S = 0.1
JOINED_MAX = 1024

logger = logging.getLogger("firstlight.lb")

Context = grpc.aio.ServicerContext[control_pb2.Report, bytes]


class ControlPlane:
    """The membership behind a gRPC service."""

    def __init__(
        self,
        node: str,
        incarnation: int,
        membership: Membership,
        balance: Balance,
        scaler: Scaler,
        drains: Drains,
        history: History | None = None,
    ) -> None:
        self._history = history
        self._node, self._incarnation = node, incarnation
        self._membership = membership
        self._balance, self._scaler = balance, scaler
        self._drains = drains
        self._drain: frozenset[str] = frozenset()
        self.suspects: frozenset[str] = frozenset()
        """Nodes that are not heard, though their leases run."""
        self._changed = asyncio.Event()
        self._seq = 0
        self._joined = 0
        self._complaints = Complaints()
        self._to_cores = Feed(Board({Role.CORE}), brief=True)
        self._to_others = Feed(Board({Role.CORE, Role.EDGE}), brief=False)
        self._publish(monotonic_s())

    def figures(self) -> dict[str, Fact]:
        """How many nodes live here, and how many are joined."""
        return {"members": len(self._membership.live(monotonic_s())), "joined": self._joined}

    async def start(self, address: str, files: NodeFiles) -> rpc.Listening:
        """Listen for nodes; raises `ConfigError` if the address cannot be bound."""
        return await rpc.server(address, files, self._add_to)

    def _add_to(self, server: grpc.aio.Server) -> None:
        """Not the generated way: that would pack the same view once for each node."""
        join = grpc.stream_stream_rpc_method_handler(
            self._join, control_pb2.Report.FromString, lambda view: view
        )
        name = control_pb2.DESCRIPTOR.services_by_name["Control"].full_name
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(name, {"Join": join}),)
        )

    async def keep(self, stop: asyncio.Event) -> None:
        """End leases in time, and move the shares of regions, until `stop`."""
        stepped_at = -STEP_EVERY_S
        while not stop.is_set():
            now = monotonic_s()
            self._look(now)
            if now - stepped_at >= STEP_EVERY_S:
                stepped_at = now
                self._step(now)
            try:
                await asyncio.wait_for(stop.wait(), EXPIRE_EVERY_S)
            except TimeoutError:
                continue

    async def publish(self, stop: asyncio.Event) -> None:
        """Make views, until `stop`."""
        while not stop.is_set():
            self._publish(monotonic_s())
            await asyncio.sleep(VIEW_GAP_S)
            if self._to_cores.board.more or self._to_others.board.more:
                continue
            try:
                await asyncio.wait_for(self._changed.wait(), VIEW_EVERY_S - VIEW_GAP_S)
            except TimeoutError:
                continue

    def _publish(self, now: float) -> None:
        self._changed.clear()
        self._seq += 1
        self._drain = self._drains.nodes
        head = MeshView(
            self._node,
            self._seq,
            incarnation=self._incarnation,
            suspects=self.suspects,
            draining=self._drain,
            draining_whole=self._drains.whole,
        )
        known = {lease.report.info.node: lease for lease in self._membership.known(now)}
        self._to_cores.advance(head, known, now)
        self._to_others.advance(replace(head, table=self._balance.table), known, now)

    def _look(self, now: float) -> None:
        gone = self._membership.expire(now)
        if gone:
            logger.warning("leases ended: %s", ", ".join(gone))
            self._note("lease ended", *gone)
        suspects = self._membership.suspects(now)
        silent = suspects - self.suspects
        if silent:
            logger.warning("not heard for a while: %s", ", ".join(sorted(silent)))
            self._note("suspect", *sorted(silent))
        if gone or suspects != self.suspects or self._drains.nodes != self._drain:
            self._changed.set()
        self.suspects = suspects
        self._count(now)

    def _step(self, now: float) -> None:
        leases = self._membership.live(now)
        self._balance.step(leases, self.suspects, now)
        self._scaler.step(self._balance.reports, self.suspects, self._balance.table, now)
        meter.scaled(self._scaler.regions)
        for edge, why in self._balance.distances.impossible.items():
            self._ignore(edge, "impossible", f"{why}: its round trips are not believed", now)
        for edge, why in self._balance.absurd.items():
            self._ignore(edge, "absurd", f"{why}: its last good word stays", now)
        for figure in self._balance.spill.ignored:
            logger.warning("not shared out by: %s", figure)

    async def _join(
        self, reports: AsyncIterator[control_pb2.Report], context: Context
    ) -> AsyncIterator[bytes]:
        """One node's stream, from its first report to its end."""
        peer = await rpc.require_role(context, frozenset(Role))
        if self._joined >= JOINED_MAX:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{JOINED_MAX} nodes are the most"
            )
        feed, seq = self._to_cores if peer.role is Role.CORE else self._to_others, 0
        self._joined += 1
        telemetry.CONTROL_JOINED.labels(role=peer.role).inc()
        reading = asyncio.create_task(self._read(reports, peer))
        try:
            while not reading.done():
                newer = feed.next
                seq, view = feed.after(seq)
                yield view
                await asyncio.wait((reading, newer), return_when=asyncio.FIRST_COMPLETED)
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
            try:
                report = from_report(message)
            except BadNumberError as error:
                info = from_node(message.info)
                _check_identity(info, peer)
                now = monotonic_s()
                self._membership.heard(info, message.seq, now)
                telemetry.MESH_REPORTS.labels(fate=Fate.IGNORED).inc()
                self._ignore(info.node, "number", error.message, now)
                continue
            _check_identity(report.info, peer)
            self._take(report)

    def _take(self, report: Report) -> None:
        now, node = monotonic_s(), report.info.node
        outcome = self._membership.report(report, now)
        telemetry.MESH_REPORTS.labels(fate=outcome.fate).inc()
        if outcome.changed:
            logger.info("%s", outcome.reason)
            self._note(outcome.reason, node)
            self._to_cores.board.news(node)
            self._to_others.board.news(node)
            self._changed.set()
        elif outcome.fate is Fate.REFUSED:
            raise PeerError(outcome.reason)
        elif outcome.fate is Fate.IGNORED:
            self._ignore(node, "absurd", outcome.reason, now)
        elif outcome.fate is Fate.DUPLICATE:
            self._ignore(node, "duplicate", outcome.reason, now)

    def _ignore(self, node: str, reason: str, words: str, now: float) -> None:
        telemetry.MESH_IGNORED.labels(role=Role.LB, reason=reason).inc()
        if self._complaints.new(node, reason, now):
            logger.warning("%s: ignored: %s", node, words)

    def _note(self, how: str, *nodes: str) -> None:
        if self._history is not None:
            for node in nodes:
                self._history.note(What.MEMBER, facts={"member": node, "how": how})

    def _count(self, now: float) -> None:
        roles = [lease.report.info.role for lease in self._membership.live(now)]
        for role in Role:
            telemetry.MESH_NODES.labels(role=role).set(roles.count(role))
        telemetry.MESH_SUSPECTS.set(len(self.suspects))


def _check_identity(info: NodeInfo, peer: Identity) -> None:
    if (info.role, info.node) != (peer.role, peer.node):
        raise AuthError(
            f"report of {info.role} {info.node!r}, "
            f"but the certificate is of {peer.role} {peer.node!r}"
        )


def _code(fault: FirstlightError) -> grpc.StatusCode:
    if isinstance(fault, AuthError):
        return grpc.StatusCode.PERMISSION_DENIED
    return grpc.StatusCode.INVALID_ARGUMENT
